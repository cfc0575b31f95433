// Classifies CIFAR-10 images with a trained ResNet-20.
// usage: resnet20_cifar10 WEIGHTS.safetensors IMAGES.npy LABELS.npy    (u8 [n, 32, 32, 3] and u8 [n])
#include <tessera/tessera.h>

#include <cstdio>

using namespace tessera;

namespace {

// u8 [n, 32, 32, 3] -> f32 [n, 3, 32, 32], standardised as in training.
Tensor standardised(const Tensor& images) {
  const Tensor mean = tensor<float>({0.485f, 0.456f, 0.406f}, {3}), std = tensor<float>({0.229f, 0.224f, 0.225f}, {3});
  return ((images.to(Float32) / 255.0 - mean) / std).permute({0, 3, 1, 2}).contiguous();
}

void run(const char* weights, const char* images_file, const char* labels_file) {
  models::ResNet20 net;
  net.load_state_dict(load_safetensors(weights));
  net.eval();
  const Tensor images = load_npy(images_file), labels = load_npy(labels_file);
  if (images.dim() != 4 || images.size(1) != 32 || images.size(2) != 32 || images.size(3) != 3 || labels.dim() != 1 ||
      labels.size(0) != images.size(0) || images.size(0) == 0)
    throw Error("images must be [n, 32, 32, 3] and labels [n], not " + describe(images) + " and " + describe(labels));

  NoGrad no_grad;
  const int64_t n = images.size(0), batch = 100;
  int64_t right = 0;
  for (int64_t i = 0; i < n; i += batch) {
    const Tensor predicted = argmax(net(standardised(images.slice(0, i, i + batch))), 1);
    right += sum(eq(predicted, labels.slice(0, i, i + batch).to(Int64))).item<int64_t>();
  }
  std::printf("accuracy %.3f (%lld of %lld)\n", static_cast<double>(right) / static_cast<double>(n),
              static_cast<long long>(right), static_cast<long long>(n));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "error: usage: %s WEIGHTS.safetensors IMAGES.npy LABELS.npy\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const FileError& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
