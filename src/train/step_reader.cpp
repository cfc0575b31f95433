#include "train/step_reader.h"

#include <utility>

#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "train/saved.h"

namespace tessera::train {

StepReader::StepReader(Device device, std::function<void(std::vector<StepInfo>)> on_read)
    : device_(device), on_read_(std::move(on_read)), reader_(device) {}

void StepReader::begin() {
  if (pending_.empty() && !sent_) last_.emplace(device_);
}

void StepReader::send() {
  NoGrad no_grad;
  std::vector<MadeStep> steps = std::exchange(pending_, {});
  Tensors numbers;
  for (const MadeStep& p : steps)
    for (const Tensor& t : {p.loss, p.norm, p.skipped, p.loss_scale.defined() ? p.loss_scale : p.norm})
      numbers.push_back(reshape(cast(t, Float64), {1}));
  const Tensor all = concat(numbers, 0);
  const Mark began = *std::exchange(last_, Mark(device_));
  receive();
  sent_ = Sent{std::move(steps), all, began, *last_};
}

void StepReader::receive() {
  if (!sent_) return;
  const Sent sent = *std::exchange(sent_, std::nullopt);
  sent.made.event.wait(reader_);
  const std::vector<double> numbers = [&] {
    const StreamGuard guard(reader_);  // not for what callbacks do
    return sent.numbers.to(cpu()).to_vector<double>();
  }();
  const double ms = sent.made.milliseconds_since(sent.began, device_) / static_cast<double>(sent.steps.size());
  const double* next = numbers.data();
  std::vector<StepInfo> infos;
  for (const MadeStep& p : sent.steps) {
    StepInfo info{.step = p.step, .ms = ms, .lr = p.lr};
    info.loss = without_nan_sign(*next++);
    info.grad_norm = without_nan_sign(*next++);
    info.skipped = *next++ != 0;
    info.loss_scale = p.loss_scale.defined() ? *next : 1;
    ++next;
    infos.push_back(info);
  }
  on_read_(std::move(infos));
}

void StepReader::report() {
  if (!pending_.empty()) send();
  receive();
}

}  // namespace tessera::train
