// TLS 1.3 with the job key as external pre-shared key: no certificates, no tickets, no early data. Works on memory; the caller
// moves the bytes, so no write of OpenSSL's ever raises SIGPIPE. Engine lock held (one thread at a time per context).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/blob.h"
#include "control/key.h"
#include "hmc/status.h"

struct ssl_ctx_st;
struct ssl_st;
struct ssl_session_st;

namespace hmc::control {

class TlsSession;

// Settings and key of one Context, shared by its sessions.
class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  static Result<std::shared_ptr<TlsContext>> create(const PresharedKey& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  Result<std::unique_ptr<TlsSession>> session(bool server);

 private:
  friend struct TlsCallbacks;
  explicit TlsContext(const PresharedKey& key) : key_(key) {}
  ssl_session_st* psk_session(ssl_st* ssl) const;

  PresharedKey key_;
  ssl_ctx_st* ctx_ = nullptr;
};

class TlsSession {
 public:
  // At most this much is taken by one feed() or write(), so that no buffer of OpenSSL's outgrows a record.
  static constexpr std::size_t chunk = 16 * 1024;

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake; needs more input until established(). Errors: authentication.
  Status handshake();
  [[nodiscard]] bool established() const noexcept { return established_; }
  Status feed(ByteSpan ciphertext);
  // Plaintext into `out`: how much, 0 when more input is needed. Errors: protocol (forged or damaged bytes), peer_lost (TLS
  // closed).
  Result<std::size_t> read(std::span<std::byte> out);
  Status write(ByteSpan plaintext);
  // Appends what must go to the peer.
  void take_output(Bytes& out);

 private:
  friend class TlsContext;
  TlsSession(std::shared_ptr<TlsContext> context, ssl_st* ssl, bool server)
      : context_(std::move(context)), ssl_(ssl), server_(server) {}

  std::shared_ptr<TlsContext> context_;
  ssl_st* ssl_;
  bool server_;
  bool established_ = false;
};

}  // namespace hmc::control
