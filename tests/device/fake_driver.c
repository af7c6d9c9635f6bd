// As much of an NVIDIA driver (libcuda.so.1) as CUDA's run-time library asks for before it gives up. VERSION is what it
// supports, INIT what initialising it returns.
#include <string.h>

int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return INIT;
}

static int fails(void) { return 999; }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, void *status) {
  (void)version, (void)flags, (void)status;
  *function = (void *)fails;
  if (strcmp(name, "cuDriverGetVersion") == 0) *function = (void *)cuDriverGetVersion;
  if (strcmp(name, "cuInit") == 0) *function = (void *)cuInit;
  if (strcmp(name, "cuGetProcAddress") == 0) *function = (void *)cuGetProcAddress_v2;
  return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
