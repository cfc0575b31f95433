// Measured picks: which kernel of an op's list was the fastest for a call. Files of them are the business of
// io/picks.h.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/kernel.h"

namespace tessera {

struct Pick {
  std::string kernel;                                        ///< the fastest
  std::string when;                                          ///< it was measured, "2026-11-21T14:35:00Z"
  std::vector<std::pair<std::string, double>> microseconds;  ///< of every kernel that takes the call
};
/// By call_text() of the call.
using Picks = std::map<std::string, Pick, std::less<>>;

/// Where picks come from, and where new ones go. Calls to it are made one at a time.
class PickBook {
 public:
  virtual ~PickBook() = default;
  /// Asked once for each device. Throws nothing.
  virtual Picks read(Device device) = 0;
  /// Whether calls that it does not know are measured, and then kept.
  virtual bool measures() const = 0;
  virtual void keep(Device device, const std::string& call, const Pick& pick) = 0;
  /// What warnings call it.
  virtual std::string name(Device device) const = 0;
};

/// All calls of this process ask the book from now on; null: lists are used in their order.
void use_picks(std::shared_ptr<PickBook> book);

/// Op, inputs with their layouts, number of outputs and attributes: what a pick holds for.
std::string call_text(const Call& call);
/// What computes: "NVIDIA H100 80GB HBM3 sm_90".
std::string card_of(Device device);
/// What its kernels come from: "tessera 0.1.0, cublasLt 130100, cudnn 91900".
std::string libraries_of(Device device);

// ---- for call_plan.cpp

/// The kernel of the list that the book names or that is measured now; null where the list's order decides. `pick` is
/// set to what is known, if anything.
const Kernel* picked_kernel(const Call& call, KernelList list, Pick* pick = nullptr);
/// Whether there is a book.
bool picks_are_used();

}  // namespace tessera
