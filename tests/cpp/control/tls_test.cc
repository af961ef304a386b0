// TLS by the job key: what a stranger with a certificate, or without the key, gets.
#include "control/tls.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "control/channel.h"
#include "control/node.h"

namespace hmc::test {
namespace {

using control::PresharedKey;
using control::TlsContext;
using control::TlsSession;

PresharedKey fresh_key() { return PresharedKey::from_text(generate_key()).value(); }

// Bytes back and forth until neither side has any. The first error of each side is kept.
struct Pair {
  std::unique_ptr<TlsSession> client;
  std::unique_ptr<TlsSession> server;
  Status client_status;
  Status server_status;
  void run() {
    for (int i = 0; i < 20; ++i) {
      step(*client, *server, client_status);
      step(*server, *client, server_status);
    }
  }
  static void step(TlsSession& from, TlsSession& to, Status& status) {
    if (status.ok()) status = from.handshake();
    Bytes bytes;
    from.take_output(bytes);
    EXPECT_TRUE(to.feed(bytes).ok());
  }
};

TEST(Tls, TheSameKeyMeets) {
  const PresharedKey key = fresh_key();
  const auto context = TlsContext::create(key).value();
  const auto other = TlsContext::create(key).value();
  Pair pair{context->session(false).value(), other->session(true).value(), {}, {}};
  pair.run();
  ASSERT_TRUE(pair.client_status.ok() && pair.server_status.ok()) << pair.client_status.str() << pair.server_status.str();
  ASSERT_TRUE(pair.client->established() && pair.server->established());
  const Bytes secret = pattern(10'000, 3);
  ASSERT_TRUE(pair.client->write(secret).ok());
  Bytes cipher;
  pair.client->take_output(cipher);
  EXPECT_EQ(std::search(cipher.begin(), cipher.end(), secret.begin(), secret.begin() + 16), cipher.end());
  Bytes plain(20'000);
  ASSERT_TRUE(pair.server->feed(cipher).ok());
  const auto n = pair.server->read(plain);
  ASSERT_TRUE(n.ok());
  plain.resize(n.value());
  EXPECT_TRUE(plain == secret);
  EXPECT_EQ(ERR_peek_error(), 0U) << "the application's error queue was dirtied";
}

TEST(Tls, DifferentKeysDoNotMeet) {
  Pair pair{TlsContext::create(fresh_key()).value()->session(false).value(),
            TlsContext::create(fresh_key()).value()->session(true).value(),
            {},
            {}};
  pair.run();
  EXPECT_EQ(pair.client_status.code(), Code::authentication);
  EXPECT_EQ(pair.server_status.code(), Code::authentication);
  EXPECT_FALSE(pair.client->established());
  EXPECT_FALSE(pair.server->established());
  EXPECT_EQ(ERR_peek_error(), 0U);
}

// A TLS end of OpenSSL's own, without our key.
struct Stranger {
  explicit Stranger(bool server, bool with_certificate = false) : context(SSL_CTX_new(TLS_method())) {
    if (with_certificate) {
      EVP_PKEY_CTX* generator = EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr);
      EVP_PKEY_keygen_init(generator);
      EVP_PKEY_keygen(generator, &key);
      EVP_PKEY_CTX_free(generator);
      X509* certificate = X509_new();
      X509_set_version(certificate, 2);
      ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
      X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
      X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
      X509_set_pubkey(certificate, key);
      X509_NAME* name = X509_get_subject_name(certificate);
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
      X509_set_issuer_name(certificate, name);
      EXPECT_GT(X509_sign(certificate, key, nullptr), 0);
      EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
      X509_free(certificate);
    }
    ssl = SSL_new(context);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    if (server) {
      SSL_set_accept_state(ssl);
    } else {
      SSL_set_connect_state(ssl);
    }
  }
  ~Stranger() {
    SSL_free(ssl);
    SSL_CTX_free(context);
    EVP_PKEY_free(key);
    ERR_clear_error();
  }
  // Runs against one of ours; what that says.
  Status meet(TlsSession& ours) {
    Status status;
    for (int i = 0; i < 20; ++i) {
      if (status.ok()) status = ours.handshake();
      Bytes bytes;
      ours.take_output(bytes);
      if (!bytes.empty()) BIO_write(SSL_get_rbio(ssl), bytes.data(), static_cast<int>(bytes.size()));
      SSL_do_handshake(ssl);
      ERR_clear_error();
      char buffer[8192];
      const int n = BIO_read(SSL_get_wbio(ssl), buffer, sizeof buffer);
      if (n > 0) {
        EXPECT_TRUE(ours.feed(std::as_bytes(std::span(buffer, static_cast<std::size_t>(n)))).ok());
      }
    }
    return status;
  }
  SSL_CTX* context;
  SSL* ssl = nullptr;
  EVP_PKEY* key = nullptr;
};

TEST(Tls, AServerWithACertificateInsteadOfTheKeyIsRefused) {
  Stranger server(true, true);
  const auto client = TlsContext::create(fresh_key()).value()->session(false).value();
  EXPECT_EQ(server.meet(*client).code(), Code::authentication);
  EXPECT_FALSE(client->established());
}

TEST(Tls, AClientWithoutTheKeyIsRefused) {
  for (const bool certificate : {false, true}) {
    Stranger client(false, certificate);
    const auto server = TlsContext::create(fresh_key()).value()->session(true).value();
    EXPECT_EQ(client.meet(*server).code(), Code::authentication);
    EXPECT_FALSE(server->established());
  }
}

TEST(Tls, OlderVersionsAreRefused) {
  Stranger client(false);
  SSL_set_max_proto_version(client.ssl, TLS1_2_VERSION);
  const auto server = TlsContext::create(fresh_key()).value()->session(true).value();
  EXPECT_EQ(client.meet(*server).code(), Code::authentication);
  EXPECT_FALSE(server->established());
}

TEST(Tls, NoiseIsRefused) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto server = TlsContext::create(fresh_key()).value()->session(true).value();
    ASSERT_TRUE(server->feed(pattern(2000, seed)).ok());
    EXPECT_EQ(server->handshake().code(), Code::authentication);
    EXPECT_EQ(ERR_peek_error(), 0U);
  }
}

TEST(Key, GeneratedKeysAreGoodAndDiffer) {
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) {
    keys.push_back(generate_key());
    EXPECT_EQ(keys.back().size(), 61U);
    EXPECT_TRUE(keys.back().starts_with("hmc1-"));
    EXPECT_TRUE(PresharedKey::from_text(keys.back()).ok());
  }
  std::ranges::sort(keys);
  EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
}

TEST(Key, EveryTypingErrorIsCaught) {
  const std::string key = generate_key();
  for (std::size_t i = 5; i < key.size(); ++i) {
    std::string typo = key;
    typo[i] = typo[i] == 'a' ? 'b' : 'a';
    const auto result = PresharedKey::from_text(typo);
    ASSERT_FALSE(result.ok()) << i;
    EXPECT_EQ(result.status().code(), Code::invalid_argument);
    EXPECT_NE(result.status().message().find("hmc keygen"), std::string::npos);
    EXPECT_EQ(result.status().message().find(typo.substr(5, 20)), std::string::npos) << "the message gives the key away";
    std::string swapped = key;
    if (i + 1 < key.size() && key[i] != key[i + 1]) {
      std::swap(swapped[i], swapped[i + 1]);
      EXPECT_FALSE(PresharedKey::from_text(swapped).ok());
    }
  }
  EXPECT_FALSE(PresharedKey::from_text(key.substr(0, 60)).ok());
  EXPECT_FALSE(PresharedKey::from_text(key + "a").ok());
  EXPECT_FALSE(PresharedKey::from_text("hmc1-").ok());
  std::string strange = key;
  strange[20] = '1';
  EXPECT_FALSE(PresharedKey::from_text(strange).ok());
}

TEST(Key, CaseAndWhiteSpaceDoNotMatterInGeneratedKeys) {
  const std::string key = generate_key();
  std::string upper = key;
  std::ranges::transform(upper, upper.begin(), [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  const auto expected = PresharedKey::from_text(key).value().bytes();
  EXPECT_EQ(PresharedKey::from_text(upper).value().bytes(), expected);
  EXPECT_EQ(PresharedKey::from_text("  " + key + "\n").value().bytes(), expected);
}

TEST(Key, PassphrasesNeedSixteenCharacters) {
  EXPECT_EQ(PresharedKey::from_text("fifteen letters").status().code(), Code::invalid_argument);
  EXPECT_EQ(PresharedKey::from_text("                                ").status().code(), Code::invalid_argument);
  EXPECT_TRUE(PresharedKey::from_text("sixteen letters.").ok());
  EXPECT_NE(PresharedKey::from_text("sixteen letters.").value().bytes(),
            PresharedKey::from_text("Sixteen letters.").value().bytes());
}

// HKDF-SHA-256 computed by other means: hosts of different builds must agree.
TEST(Key, IsDerivedAsEver) {
  constexpr std::array<unsigned char, 32> expected{0xae, 0x00, 0x08, 0xc9, 0x8d, 0xff, 0x81, 0x05, 0x10, 0xb8, 0x52,
                                                   0x72, 0x11, 0x29, 0x7d, 0x89, 0xf2, 0x39, 0xce, 0x89, 0x22, 0xac,
                                                   0x23, 0x60, 0xde, 0x64, 0x9e, 0x83, 0x36, 0x21, 0x9b, 0x73};
  EXPECT_EQ(PresharedKey::from_text("correct horse battery staple").value().bytes(), expected);
}

}  // namespace
}  // namespace hmc::test
