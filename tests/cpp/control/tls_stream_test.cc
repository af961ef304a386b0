// A Stream inside TLS whose other end has the key and means harm.
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>

#include "control/node.h"
#include "control/stream.h"

namespace hmc::test {
namespace {

// A client of OpenSSL's own with the job key.
class KeyHolder {
 public:
  KeyHolder(const control::PresharedKey& key, int fd) : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_app_data(context_, const_cast<control::PresharedKey*>(&key));
    SSL_CTX_set_psk_use_session_callback(context_, use_session);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd);
    SSL_set_connect_state(ssl_);
  }
  ~KeyHolder() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    ERR_clear_error();
  }
  KeyHolder(const KeyHolder&) = delete;
  KeyHolder& operator=(const KeyHolder&) = delete;
  [[nodiscard]] SSL* ssl() const { return ssl_; }

 private:
  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* length, SSL_SESSION** session) {
    const auto* key = static_cast<const control::PresharedKey*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
    const std::array<unsigned char, 2> aes128{0x13, 0x01};
    *session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(*session, key->bytes().data(), key->bytes().size());
    SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, aes128.data()));
    SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
    static constexpr std::string_view identity = "hmc-job-key-1";
    *id = reinterpret_cast<const unsigned char*>(identity.data());
    *length = identity.size();
    return 1;
  }
  SSL_CTX* context_;
  SSL* ssl_;
};

TEST(TlsStream, AnswersThatNobodyReadsAreBounded) {
  const auto key = control::PresharedKey::from_text(generate_key()).value();
  std::array<int, 2> fds{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  const UniqueFd theirs(fds[1]);
  control::Stream stream(UniqueFd{fds[0]}, false);
  KeyHolder peer(key, theirs.get());
  stream.secure(control::TlsContext::create(key).value()->session(true).value());
  for (int i = 0; i < 10; ++i) {
    SSL_do_handshake(peer.ssl());
    while (stream.read() == control::Stream::Input::data) stream.flush();
  }
  ASSERT_TRUE(stream.established());
  // Each asks for an answer, and the peer reads none.
  for (int i = 0; i < 200'000 && stream.status().ok(); ++i) {
    ASSERT_EQ(SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    SSL_do_handshake(peer.ssl());
    while (stream.read() == control::Stream::Input::data) stream.flush();
  }
  EXPECT_EQ(stream.status().code(), Code::protocol) << stream.queued() << " bytes queued";
  EXPECT_LT(stream.queued(), std::size_t{2} << 20);
}

}  // namespace
}  // namespace hmc::test
