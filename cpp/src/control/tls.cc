#include "control/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace hmc::control {
namespace {

// Names the scheme, not the job: nothing about the key can be learned from it.
constexpr std::string_view psk_identity = "hmc-job-key-1";
constexpr std::array<unsigned char, 2> aes128_gcm_sha256{0x13, 0x01};

// The error queue belongs to the thread, which is the application's: it is left empty.
std::string drain_errors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    if (const char* reason = ERR_reason_error_string(error); text.empty() && reason != nullptr) text = reason;
  }
  return text.empty() ? "no detail from OpenSSL" : text;
}

int refuse_certificate(int, X509_STORE_CTX*) { return 0; }

}  // namespace

struct TlsCallbacks {
  static const TlsContext* context_of(SSL* ssl) {
    return static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  }

  static int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* length, SSL_SESSION** session) {
    *session = nullptr;
    // After a HelloRetryRequest the digest is fixed; ours is SHA-256. Without a PSK the certificate check ends the handshake.
    if (digest != nullptr && EVP_MD_size(digest) != 32) return 1;
    *session = context_of(ssl)->psk_session(ssl);
    *id = reinterpret_cast<const unsigned char*>(psk_identity.data());
    *length = psk_identity.size();
    return *session != nullptr ? 1 : 0;
  }

  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
    *session = nullptr;
    if (length != psk_identity.size() || std::memcmp(identity, psk_identity.data(), length) != 0) return 1;  // no such key
    *session = context_of(ssl)->psk_session(ssl);
    return *session != nullptr ? 1 : 0;
  }
};

Result<std::shared_ptr<TlsContext>> TlsContext::create(const PresharedKey& key) {
#ifdef OPENSSL_INIT_NO_ATEXIT
  // A Context may outlive main(): OpenSSL must not tear itself down under it. Without effect if the application initialised it
  // first.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
#endif
  ERR_clear_error();
  const std::shared_ptr<TlsContext> self(new TlsContext(key));
  self->ctx_ = SSL_CTX_new(TLS_method());
  SSL_CTX* ctx = self->ctx_;
  if (ctx == nullptr || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(ctx, 0) != 1 || SSL_CTX_set_max_early_data(ctx, 0) != 1) {
    return Status(Code::unsupported, "TLS 1.3 with AES-128-GCM cannot be set up: " + drain_errors());
  }
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(ctx, SSL_OP_ALLOW_NO_DHE_KEX);  // forward secrecy, whatever the system's configuration says
  SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_quiet_shutdown(ctx, 1);
  SSL_CTX_set_app_data(ctx, self.get());
  SSL_CTX_set_psk_use_session_callback(ctx, TlsCallbacks::use_session);
  SSL_CTX_set_psk_find_session_callback(ctx, TlsCallbacks::find_session);
  return self;
}

TlsContext::~TlsContext() { SSL_CTX_free(ctx_); }

SSL_SESSION* TlsContext::psk_session(SSL* ssl) const {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, aes128_gcm_sha256.data());
  SSL_SESSION* session = SSL_SESSION_new();
  if (cipher != nullptr && session != nullptr &&
      SSL_SESSION_set1_master_key(session, key_.bytes().data(), key_.bytes().size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

Result<std::unique_ptr<TlsSession>> TlsContext::session(bool server) {
  ERR_clear_error();
  SSL* ssl = SSL_new(ctx_);
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  if (ssl == nullptr || in == nullptr || out == nullptr) {
    SSL_free(ssl);
    BIO_free(in);
    BIO_free(out);
    return Status(Code::out_of_memory, "no TLS session: " + drain_errors());
  }
  SSL_set_bio(ssl, in, out);
  if (server) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
    // A server without the key could answer with a certificate instead; none is ever good enough.
    SSL_set_verify(ssl, SSL_VERIFY_PEER, refuse_certificate);
  }
  return std::unique_ptr<TlsSession>(new TlsSession(shared_from_this(), ssl, server));
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

Status TlsSession::handshake() {
  if (established_) return {};
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    const int error = SSL_get_error(ssl_, result);
    if (error == SSL_ERROR_WANT_READ) return {};
    const std::string detail = drain_errors();
    return Status(Code::authentication, std::string("the job keys of both ends do not match, so ") +
                                            (server_ ? "the client" : "the server") +
                                            " is refused: give both the same key= or HMC_JOB_KEY (TLS: " + detail + ")");
  }
  if (SSL_session_reused(ssl_) != 1 || SSL_version(ssl_) != TLS1_3_VERSION) {
    return Status(Code::authentication, "the TLS handshake ended without proof of the job key");
  }
  established_ = true;
  return {};
}

Status TlsSession::feed(ByteSpan ciphertext) {
  if (ciphertext.empty()) return {};
  ERR_clear_error();
  const int n = BIO_write(SSL_get_rbio(ssl_), ciphertext.data(), static_cast<int>(ciphertext.size()));
  if (n == static_cast<int>(ciphertext.size())) return {};
  return Status(Code::out_of_memory, "TLS input is stuck: " + drain_errors());
}

Result<std::size_t> TlsSession::read(std::span<std::byte> out) {
  ERR_clear_error();
  std::size_t n = 0;
  const int result = SSL_read_ex(ssl_, out.data(), out.size(), &n);
  if (result == 1) return n;
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ) return std::size_t{0};
  if (error == SSL_ERROR_ZERO_RETURN) return Status(Code::peer_lost, "the peer ended TLS");
  return Status(Code::protocol, "damaged or forged bytes in the encrypted stream (TLS: " + drain_errors() + ")");
}

Status TlsSession::write(ByteSpan plaintext) {
  if (plaintext.empty()) return {};
  ERR_clear_error();
  std::size_t n = 0;
  if (SSL_write_ex(ssl_, plaintext.data(), plaintext.size(), &n) == 1 && n == plaintext.size()) return {};
  return Status(Code::transport, "cannot encrypt (TLS: " + drain_errors() + ")");
}

void TlsSession::take_output(Bytes& out) {
  BIO* bio = SSL_get_wbio(ssl_);
  const std::size_t pending = BIO_ctrl_pending(bio);
  if (pending == 0) return;
  const std::size_t before = out.size();
  out.resize(before + pending);
  const int n = BIO_read(bio, out.data() + before, static_cast<int>(pending));
  out.resize(before + static_cast<std::size_t>(std::max(n, 0)));
}

}  // namespace hmc::control
