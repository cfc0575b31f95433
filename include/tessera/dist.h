// Many ranks that work on one thing: threads of a process, or processes that `tessera launch` began.
//
//   dist::World world;
//   dist::DataParallel parallel(model, world);
//   ... a training loop as it was, each rank with batches of its own ...
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn.h"

namespace tessera::dist {

/// The run was ended for all ranks, because one of them failed or did not answer: the message says which and why.
struct Aborted : Error {
  using Error::Error;
};

/// How elements of all ranks become one. Sums of f16 and bf16 are made in f32 and rounded once.
enum class ReduceOp : uint8_t { Sum, Mean, Product, Max, Min };
using enum ReduceOp;
std::string_view name(ReduceOp op);

/// Ranks that call collectives together, all in the same order. A handle: copies are the same group.
class Group {
 public:
  /// This process's place in the group, from 0, and how many there are.
  int rank() const;
  int size() const;
  /// Those ranks of this group that give the same color, in their order. Every rank of this group calls it.
  Group split(int color) const;
  /// How its ranks exchange bytes of the host: "neighbours" share memory, "mpi", "tcp" and "gloo" do not.
  std::string_view engine() const;
  /// The same of tensors on a device: "nccl", or the former and why. Known after the first collective of one.
  std::string engine(Device device) const;

  struct State;
  State& state() const { return *state_; }

 protected:
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct WorldOptions {
  double timeout = 0;  ///< seconds after which a rank that waits ends the run; 0: TESSERA_TIMEOUT's, or 1800
  /// "neighbours", "mpi", "tcp" or "gloo"; empty: TESSERA_ENGINE's, or the first one that can.
  std::string engine = {};
  /// A rank that is alone has an engine, too, and its collectives and DataParallel go through it: what they cost.
  bool even_alone = false;
};

/// All ranks. A process that nothing has launched is the only one.
class World : public Group {
 public:
  /// Joins those that `tessera launch`, torchrun, srun or mpirun began. Throws Error where it cannot.
  explicit World(const WorldOptions& options = {});
  /// The rank among those of this host, from 0.
  int local_rank() const;
  /// This rank's own: of a GPU the one so many behind it, around the end, as its place on the host says; the CPU as it
  /// is.
  Device device(Device first) const;

 private:
  friend void run_ranks(int, const std::function<void(const World&)>&, const WorldOptions&);
  using Group::Group;
};

/// Runs `body` as each of `size` ranks, which are threads of this process. Returns when all have; rethrows what the
/// first one that failed threw, and the others end.
void run_ranks(int size, const std::function<void(const World&)>& body, const WorldOptions& options = {});

/// Which engine moves tensors of that device, and why not the others: a line each, in the order in which they are
/// tried. Of a GPU it is known after the first collective of its tensors.
std::string explain_engines(const Group& group, Device device);

// ---- collectives: tensors of any device and strides; shapes and dtypes are the same on all ranks, or Error ----------
// All but send, recv and barrier are operators: captured functions hold them, also of tensors without memory. They are
// differentiable, but for all_reduce_; backward then calls the reverse collective on all ranks.

/// The combination of all ranks' x, on all of them.
Tensor all_reduce(const Tensor& x, const Group& group, ReduceOp op = Sum);
/// The same at `root`; elsewhere x.
Tensor reduce(const Tensor& x, int root, const Group& group, ReduceOp op = Sum);
/// x [n, ...] combined; each rank gets its share of n / size rows. Throws Error unless size divides n.
Tensor reduce_scatter(const Tensor& x, const Group& group, ReduceOp op = Sum);
/// x [n, ...] of all ranks, one after another: [size n, ...].
Tensor all_gather(const Tensor& x, const Group& group);
/// The same at `root`; elsewhere [0, ...].
Tensor gather(const Tensor& x, int root, const Group& group);
/// Each rank's share of n / size rows of what `root` gave, x [n, ...]; elsewhere x says shape and dtype.
Tensor scatter(const Tensor& x, int root, const Group& group);
/// What `root` gave; elsewhere x says shape and dtype.
Tensor broadcast(const Tensor& x, int root, const Group& group);
/// Of x [n, ...] each rank gets its share of n / size rows from all: [n, ...].
Tensor all_to_all(const Tensor& x, const Group& group);
/// To one rank, which calls recv. Both know shape and dtype.
void send(const Tensor& x, int to, const Group& group);
Tensor recv(const TensorMeta& meta, int from, const Group& group);
/// Returns once all ranks have called it.
void barrier(const Group& group);
/// In place and of all tensors together, which share a dtype: what many gradients need.
void all_reduce_(const Tensors& tensors, const Group& group, ReduceOp op = Sum);

/// A collective on its way, in the group's own thread.
class Work {
 public:
  /// What it gave. Throws what it threw.
  Tensor wait();
  bool done() const;

 private:
  friend Work start(const Group&, std::function<Tensor()>);
  struct State;
  std::shared_ptr<State> state_;
};
/// Runs `collective`, which calls one or more of `group`, behind those that were started before:
/// `Work sum = dist::start(group, [=] { return dist::all_reduce(x, group); });` Until it is done, nothing else calls
/// collectives of the group. It is not differentiable.
Work start(const Group& group, std::function<Tensor()> collective);

/// What a rank does between collectives: whoever waits for it meanwhile waits for that.
enum class Phase : uint8_t { Other, Data, Compute, Checkpoint };
/// A scope in which this rank is in a phase: `dist::InPhase data(world, dist::Phase::Data);` It costs two writes.
class [[nodiscard]] InPhase {
 public:
  InPhase(const Group& group, Phase phase);
  ~InPhase();
  InPhase(InPhase&& other) noexcept : phase_(std::exchange(other.phase_, nullptr)), before_(other.before_) {}

 private:
  std::atomic<uint8_t>* phase_;  // null where the rank is alone
  uint8_t before_ = 0;
};
/// Milliseconds that this rank has waited for others so far, in collectives of the host.
double milliseconds_waited(const Group& group);
/// Says which step of training this rank is in, for who waits for it.
void set_step(const Group& group, int64_t step);

// ---- training -------------------------------------------------------------------------------------------------------

struct DataParallelOptions {
  ReduceOp op = Mean;  ///< of the gradients: Mean as everybody's, Sum where losses are weighted
  /// Gradients are reduced in buckets of so many bytes, in the order in which the first backward made them on rank 0,
  /// each as soon as it is complete. The first one is smaller, so that it begins early.
  int64_t bucket_bytes = int64_t{25} << 20, first_bucket_bytes = int64_t{1} << 20;
  /// While backward goes on, on a stream of its own; or all of them behind it. By itself it is where tensors go from
  /// GPU to GPU: on a CPU the sums would take the processors that backward needs.
  enum class Overlap : uint8_t { Auto, Always, Never } overlap = Overlap::Auto;
  /// In which gradients travel, such as BFloat16; as they are if absent. They are what they were afterwards.
  std::optional<DType> gradient_dtype = {};
};

/// Data parallelism: each rank has the whole model and a part of the batch, and after each backward the gradients of
/// all ranks are one. Parameters and buffers begin as those of rank 0. A parameter that a rank did not use counts as
/// zero there, and one that no rank used has no gradient. Li et al. 2020.
class DataParallel {
 public:
  /// Throws Error where parameters of the ranks differ in name, shape or dtype.
  DataParallel(const nn::Module& model, const Group& group, const DataParallelOptions& options = {});

  /// A scope in which backward adds to this rank's gradients alone: `auto local = parallel.no_sync();` The next
  /// backward after it makes them one.
  class [[nodiscard]] NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;

   private:
    friend class DataParallel;
    struct State;
    explicit NoSync(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;
  };
  NoSync no_sync() const;
  /// Makes the gradients of all ranks one now, as the end of backward does.
  void reduce() const;

 private:
  std::shared_ptr<NoSync::State> state_;
};

/// A level of averaging: after every `period` steps, blocks of so many neighbouring ranks.
struct AveragingLevel {
  int64_t period = 1;
  int ranks = 0;  ///< 0: all
};
/// Of "2:8,4:32,8:128": periods and ranks. Throws Error at what is none.
std::vector<AveragingLevel> parse_hierarchy(const std::string& text);

struct LocalSGDOptions {
  /// Periods and ranks grow from level to level, and ranks divide those of the next; the last level has all ranks.
  std::vector<AveragingLevel> hierarchy = {{4, 0}};
  int64_t warmup = 0;         ///< steps at the beginning with gradients of all ranks, as DataParallel has them
  int gradients_within = 1;   ///< blocks of so many neighbours, as those of a host, go on with gradients in common
  double outer_momentum = 0;  ///< of the averages of all ranks: SlowMo, Wang et al. 2020
  int64_t first_step = 0;     ///< where a training that was interrupted goes on
  /// Gives the last level its ranks. Throws Error that names the first thing that cannot be with so many ranks.
  void check(int ranks);
};

/// Local SGD, whose ranks step by themselves and average their parameters now and then, so that they wait for each
/// other less often: Stich 2019; in several levels Lin et al. 2020, and after a warm-up. It does what DataParallel does
/// during the warm-up. Averaged are parameters that have a gradient; neither buffers nor what optimizers keep.
class LocalSGD {
 public:
  /// Throws Error where levels do not nest, or parameters of the ranks differ. The model outlives it.
  LocalSGD(const nn::Module& model, const Group& group, const LocalSGDOptions& options = {});
  /// After each step of the optimizer, which all ranks take. `lr`: that of the step, by which outer momentum is scaled.
  /// Throws Error where ranks that average have gradients of different parameters.
  void step(double lr = 1);
  /// Makes all ranks' parameters their average now, as a checkpoint wants them.
  void average();
  /// What makes gradients one at present, of all ranks or of blocks; null where each rank keeps its own.
  const DataParallel* parallel() const;
  /// How many steps there were.
  int64_t steps() const;
  /// Whether all ranks exchanged something in the last step, so that it costs little to agree on more.
  bool all_met() const;
  /// What outer momentum needs to go on, by names of parameters: the same on all ranks. Empty without it.
  StateDict state_dict() const;
  /// Throws Error where something is missing or of another shape.
  void load_state_dict(const StateDict& dict);
  /// The level that averages after that step, from 0 on, or none: of those whose period divides the step the last one.
  /// A single level counts from the end of the warm-up, as PyTorch's averagers do.
  std::optional<size_t> level_at(int64_t step) const;
  static std::optional<size_t> level_of(const std::vector<AveragingLevel>& hierarchy, int64_t warmup, int64_t step);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// BatchNorm2d whose statistics in training are those of the batches of all ranks.
struct SyncBatchNorm2d : nn::Module {
  /// With the parameters and buffers of `norm`.
  SyncBatchNorm2d(const nn::BatchNorm2d& norm, const Group& group);
  Tensors forward(const Tensors& in) const override;
  Group group;
  double momentum, eps;
  Tensor weight, bias, running_mean, running_var;
};
/// Puts a SyncBatchNorm2d where each BatchNorm2d of the model is; returns how many.
int sync_batch_norms(nn::Module& model, const Group& group);

/// Adds up the gradients of a step's micro-batches in an order that neither their number on each rank nor the number of
/// ranks changes: along the tree of dist's sums, neighbours first.
class GradientSum {
 public:
  explicit GradientSum(std::vector<Tensor> parameters) : parameters_(std::move(parameters)) {}
  /// After the backward of a micro-batch, whose gradients it takes.
  void add();
  /// Leaves the sum in the parameters, and begins anew.
  void finish();
  /// Begins anew without it.
  void clear() { levels_.clear(); }

 private:
  std::vector<Tensor> parameters_;
  std::vector<std::vector<Tensor>> levels_;  // sums of 1, 2, 4, ... micro-batches; empty where there is none
};

}  // namespace tessera::dist
