/* A CUDA driver that does nothing but write down what it is told: the declarations are NVIDIA's (cuda.h), so the
   compiler holds this file to them, and the test holds ours to this file. */
#include <cuda.h>

long long stub_log[64][8];
int stub_calls;

static long long *entry(int kind) {
  long long *line = stub_log[stub_calls++ % 64];
  line[0] = kind;
  return line;
}

CUresult cuInit(unsigned int flags) { return (CUresult)flags; }

CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_THE_STUB";
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                        void **extra) {
  long long *line = entry(0);
  line[1] = (long long)kernel;
  line[2] = gx;
  line[3] = bx;
  line[4] = (long long)stream;
  line[5] = *(long long *)parameters[0];
  line[6] = *(long long *)parameters[1];
  line[7] = gy * gz * by * bz + shared + (extra != 0); /* 1 */
  return CUDA_SUCCESS;
}

static CUresult value(int kind, CUstream stream, CUdeviceptr address, cuuint64_t word, unsigned int flags) {
  long long *line = entry(kind);
  line[1] = (long long)stream;
  line[2] = (long long)address;
  line[3] = (long long)word;
  line[4] = flags;
  return address == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t word, unsigned int flags) {
  return value(1, stream, address, word, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t word, unsigned int flags) {
  return value(2, stream, address, word, flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  long long *line = entry(3);
  line[1] = (long long)event;
  line[2] = (long long)stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  long long *line = entry(4);
  line[1] = (long long)stream;
  line[2] = (long long)event;
  line[3] = flags;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t num_bytes, CUstream stream) {
  long long *line = entry(5);
  line[1] = (long long)target;
  line[2] = (long long)source;
  line[3] = (long long)num_bytes;
  line[4] = (long long)stream;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = 40 + ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute which, CUdevice device) {
  if (device != 42) return CUDA_ERROR_INVALID_DEVICE;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *found = 132; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *found = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *found = 0; break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *found = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
  if (count != 2 || options[0] != CU_JIT_ERROR_LOG_BUFFER || options[1] != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES ||
      ((char *)values[0])[(long long)values[1] - 1] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *module = (CUmodule)(long long)((const char *)image)[0];
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  entry(6)[1] = (long long)module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)((long long)module * 1000 + name[5]);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *found, CUfunction_attribute which, CUfunction function) {
  *found = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : which == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? 8 : -1;
  return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *found, CUfunction function, int threads, size_t shared) {
  *found = function && shared == 0 ? 2048 / threads : -1;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  *version = 13010;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t num_bytes) {
  *address = num_bytes + 1;
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  entry(10)[1] = (long long)address;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++) handle->reserved[i] = (char)(address + i);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
  *address = handle.reserved[0] * 10000 + handle.reserved[CU_IPC_HANDLE_SIZE - 1] * 10 +
             (flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  entry(7)[1] = (long long)address;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t num_bytes, unsigned int flags) {
  *address = (void *)(num_bytes + (flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address) {
  entry(19)[1] = (long long)address;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
  entry(20)[1] = (long long)function;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *address, size_t num_bytes, unsigned int flags) {
  long long *line = entry(8);
  line[1] = (long long)address;
  line[2] = (long long)num_bytes;
  line[3] = flags == (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *mapped, void *address, unsigned int flags) {
  *mapped = (CUdeviceptr)address + flags + 1;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address) {
  entry(9)[1] = (long long)address;
  return CUDA_SUCCESS;
}

/* Streams, events and contexts: each notes its arguments, and gives back something made of them. */
#define NOTED(kind, a, b, c)    \
  do {                          \
    long long *line = entry(kind); \
    line[1] = (long long)(a);   \
    line[2] = (long long)(b);   \
    line[3] = (long long)(c);   \
    return CUDA_SUCCESS;        \
  } while (0)

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  for (int i = 0; i < length; i++) name[i] = i < 3 ? (char)('A' + device - 42) : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(device + i);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)501;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) { NOTED(11, context, 0, 0); }

CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned int flags) {
  return flags == 0 && context == (CUcontext)502   ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
         : flags == 0 && context == (CUcontext)503 ? CUDA_SUCCESS
                                                   : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
  *lowest = 0;
  *highest = -5;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
  *stream = (CUstream)(long long)(610 + (flags == CU_STREAM_NON_BLOCKING) + priority);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) { NOTED(12, stream, 0, 0); }

CUresult cuStreamSynchronize(CUstream stream) { NOTED(13, stream, 0, 0); }

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  *status = stream == (CUstream)7 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  *event = (CUevent)(long long)(700 + (flags == CU_EVENT_DISABLE_TIMING));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) { NOTED(14, event, 0, 0); }

CUresult cuEventQuery(CUevent event) {
  return event == (CUevent)1 ? CUDA_SUCCESS : event == (CUevent)2 ? CUDA_ERROR_NOT_READY : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t num_bytes, CUstream stream) {
  NOTED(15, address, num_bytes, (long long)stream + value);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t num_bytes, CUstream stream) {
  NOTED(16, target, (long long)source + (long long)stream, num_bytes);
}

CUresult cuMemcpyDtoHAsync(void *target, CUdeviceptr source, size_t num_bytes, CUstream stream) {
  NOTED(17, target, (long long)source + (long long)stream, num_bytes);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  NOTED(18, *mode == CU_STREAM_CAPTURE_MODE_RELAXED, 0, 0);
}
