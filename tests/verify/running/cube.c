/* my.domain::Cube for onnxruntime: y = x^3, of float tensors of any shape. */
#include <string.h>
#include "onnxruntime_c_api.h"

static const OrtApi* api;

static void* create(const struct OrtCustomOp* op, const OrtApi* given, const OrtKernelInfo* info) {
  return (void*)given;
}
static void destroy(void* kernel) {}
static const char* name(const struct OrtCustomOp* op) { return "Cube"; }
static const char* provider(const struct OrtCustomOp* op) { return NULL; }
static size_t one(const struct OrtCustomOp* op) { return 1; }
static ONNXTensorElementDataType type(const struct OrtCustomOp* op, size_t index) {
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}
static OrtCustomOpInputOutputCharacteristic required(const struct OrtCustomOp* op, size_t index) {
  return INPUT_OUTPUT_REQUIRED;
}

static void compute(void* kernel, OrtKernelContext* context) {
  const OrtValue* x = NULL;
  OrtValue* y = NULL;
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t rank = 0, count = 0;
  int64_t sizes[16];
  const float* from;
  float* to;
  api->KernelContext_GetInput(context, 0, &x);
  api->GetTensorTypeAndShape(x, &info);
  api->GetDimensionsCount(info, &rank);
  if (rank > 16) return;
  api->GetDimensions(info, sizes, rank);
  api->GetTensorShapeElementCount(info, &count);
  api->ReleaseTensorTypeAndShapeInfo(info);
  api->KernelContext_GetOutput(context, 0, sizes, rank, &y);
  api->GetTensorMutableData((OrtValue*)x, (void**)&from);
  api->GetTensorMutableData(y, (void**)&to);
  for (size_t i = 0; i < count; i++) to[i] = from[i] * from[i] * from[i];
}

static OrtCustomOp cube;

OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  OrtCustomOpDomain* domain = NULL;
  api = base->GetApi(8); /* what it uses is as old */
  memset(&cube, 0, sizeof cube);
  cube.version = 8;
  cube.CreateKernel = create;
  cube.GetName = name;
  cube.GetExecutionProviderType = provider;
  cube.GetInputType = type;
  cube.GetInputTypeCount = one;
  cube.GetOutputType = type;
  cube.GetOutputTypeCount = one;
  cube.KernelCompute = compute;
  cube.KernelDestroy = destroy;
  cube.GetInputCharacteristic = required;
  cube.GetOutputCharacteristic = required;
  OrtStatus* failed = api->CreateCustomOpDomain("my.domain", &domain);
  if (!failed) failed = api->CustomOpDomain_Add(domain, &cube);
  return failed ? failed : api->AddCustomOpDomain(options, domain);
}
