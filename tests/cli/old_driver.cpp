// What NVIDIA's run-time library asks a driver first; this one takes programs up to CUDA 12.2.
extern "C" int cuDriverGetVersion(int* version) { return *version = 12020, 0; }
extern "C" int cuInit(unsigned) { return 0; }
