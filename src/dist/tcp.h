// The engine of ranks on several hosts: streams of TCP between each two of them.
#pragma once
#include <memory>
#include <vector>

#include "dist/exchanges.h"
#include "dist/mesh.h"

namespace tessera::dist {

class Tcp final : public Exchanges {
 public:
  Tcp(std::shared_ptr<Control> control, std::shared_ptr<Mesh> mesh, uint64_t group, std::vector<int> members, int rank);

  std::string_view name() const override { return "tcp"; }
  void send(const char* data, int64_t bytes, int to) override;
  void recv(char* data, int64_t bytes, int from) override;
  /// That of this host, as ranks on others see it. Known after the first collective.
  HostAddress address() const;

 private:
  void connect() override;
  bool advance(Flows& flows, int peer) override;
  void sleep(const Flows& flows, int other, int64_t began) override;
  bool write_some(const Socket& to, Flow& flow, int peer);
  bool read_some(const Socket& from, Flow& flow, int peer);
  void transfer(const Socket& socket, Flow& flow, int peer, bool is_out);

  std::shared_ptr<Mesh> mesh_;
  uint64_t group_;
  std::vector<Socket> streams_, to_, from_;  // of collectives, messages to ranks, messages from them
};

}  // namespace tessera::dist
