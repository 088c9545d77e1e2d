/* Base types of the C interface: names, values and layout as in CANN, usable from C99. */
#ifndef DESCEND_ACL_ACL_BASE_H_
#define DESCEND_ACL_ACL_BASE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error_codes/rt_error_codes.h"

#if defined(__GNUC__)
#define ACL_FUNC_VISIBILITY __attribute__((visibility("default")))
#else
#define ACL_FUNC_VISIBILITY
#endif

/* Gives an enum a fixed underlying type in C++. A function can then refuse a number that is none of the enum's values;
 * without the fixed type, passing such a number is undefined behaviour. The type is the one that compilers choose for
 * CANN's enums: signed only if a value is negative. */
#ifdef __cplusplus
#define ACL_ANY_INT : int
#define ACL_ANY_UNSIGNED : unsigned int
#else
#define ACL_ANY_INT
#define ACL_ANY_UNSIGNED
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef void* aclrtStream;
typedef void* aclrtEvent;
typedef void* aclrtContext;
typedef int aclError;
typedef uint16_t aclFloat16;
typedef struct aclDataBuffer aclDataBuffer;
typedef struct aclTensorDesc aclTensorDesc;

static const int ACL_ERROR_NONE ACL_MAYBE_UNUSED = 0;
static const int ACL_SUCCESS ACL_MAYBE_UNUSED = 0;

/* CANN's error codes. Functions here return only some of them. The others are for programs that use their names. */
static const int ACL_ERROR_INVALID_PARAM ACL_MAYBE_UNUSED = 100000;
static const int ACL_ERROR_UNINITIALIZE ACL_MAYBE_UNUSED = 100001;
static const int ACL_ERROR_REPEAT_INITIALIZE ACL_MAYBE_UNUSED = 100002;
static const int ACL_ERROR_INVALID_FILE ACL_MAYBE_UNUSED = 100003;
static const int ACL_ERROR_WRITE_FILE ACL_MAYBE_UNUSED = 100004;
static const int ACL_ERROR_INVALID_FILE_SIZE ACL_MAYBE_UNUSED = 100005;
static const int ACL_ERROR_PARSE_FILE ACL_MAYBE_UNUSED = 100006;
static const int ACL_ERROR_FILE_MISSING_ATTR ACL_MAYBE_UNUSED = 100007;
static const int ACL_ERROR_FILE_ATTR_INVALID ACL_MAYBE_UNUSED = 100008;
static const int ACL_ERROR_INVALID_DUMP_CONFIG ACL_MAYBE_UNUSED = 100009;
static const int ACL_ERROR_INVALID_PROFILING_CONFIG ACL_MAYBE_UNUSED = 100010;
static const int ACL_ERROR_INVALID_MODEL_ID ACL_MAYBE_UNUSED = 100011;
static const int ACL_ERROR_DESERIALIZE_MODEL ACL_MAYBE_UNUSED = 100012;
static const int ACL_ERROR_PARSE_MODEL ACL_MAYBE_UNUSED = 100013;
static const int ACL_ERROR_READ_MODEL_FAILURE ACL_MAYBE_UNUSED = 100014;
static const int ACL_ERROR_MODEL_SIZE_INVALID ACL_MAYBE_UNUSED = 100015;
static const int ACL_ERROR_MODEL_MISSING_ATTR ACL_MAYBE_UNUSED = 100016;
static const int ACL_ERROR_MODEL_INPUT_NOT_MATCH ACL_MAYBE_UNUSED = 100017;
static const int ACL_ERROR_MODEL_OUTPUT_NOT_MATCH ACL_MAYBE_UNUSED = 100018;
static const int ACL_ERROR_MODEL_NOT_DYNAMIC ACL_MAYBE_UNUSED = 100019;
static const int ACL_ERROR_OP_TYPE_NOT_MATCH ACL_MAYBE_UNUSED = 100020;
static const int ACL_ERROR_OP_INPUT_NOT_MATCH ACL_MAYBE_UNUSED = 100021;
static const int ACL_ERROR_OP_OUTPUT_NOT_MATCH ACL_MAYBE_UNUSED = 100022;
static const int ACL_ERROR_OP_ATTR_NOT_MATCH ACL_MAYBE_UNUSED = 100023;
static const int ACL_ERROR_OP_NOT_FOUND ACL_MAYBE_UNUSED = 100024;
static const int ACL_ERROR_OP_LOAD_FAILED ACL_MAYBE_UNUSED = 100025;
static const int ACL_ERROR_UNSUPPORTED_DATA_TYPE ACL_MAYBE_UNUSED = 100026;
static const int ACL_ERROR_FORMAT_NOT_MATCH ACL_MAYBE_UNUSED = 100027;
static const int ACL_ERROR_BIN_SELECTOR_NOT_REGISTERED ACL_MAYBE_UNUSED = 100028;
static const int ACL_ERROR_KERNEL_NOT_FOUND ACL_MAYBE_UNUSED = 100029;
static const int ACL_ERROR_BIN_SELECTOR_ALREADY_REGISTERED ACL_MAYBE_UNUSED = 100030;
static const int ACL_ERROR_KERNEL_ALREADY_REGISTERED ACL_MAYBE_UNUSED = 100031;
static const int ACL_ERROR_INVALID_QUEUE_ID ACL_MAYBE_UNUSED = 100032;
static const int ACL_ERROR_REPEAT_SUBSCRIBE ACL_MAYBE_UNUSED = 100033;
static const int ACL_ERROR_STREAM_NOT_SUBSCRIBE ACL_MAYBE_UNUSED = 100034;
static const int ACL_ERROR_THREAD_NOT_SUBSCRIBE ACL_MAYBE_UNUSED = 100035;
static const int ACL_ERROR_WAIT_CALLBACK_TIMEOUT ACL_MAYBE_UNUSED = 100036;
static const int ACL_ERROR_REPEAT_FINALIZE ACL_MAYBE_UNUSED = 100037;
static const int ACL_ERROR_NOT_STATIC_AIPP ACL_MAYBE_UNUSED = 100038;
static const int ACL_ERROR_COMPILING_STUB_MODE ACL_MAYBE_UNUSED = 100039;
static const int ACL_ERROR_GROUP_NOT_SET ACL_MAYBE_UNUSED = 100040;
static const int ACL_ERROR_GROUP_NOT_CREATE ACL_MAYBE_UNUSED = 100041;
static const int ACL_ERROR_PROF_ALREADY_RUN ACL_MAYBE_UNUSED = 100042;
static const int ACL_ERROR_PROF_NOT_RUN ACL_MAYBE_UNUSED = 100043;
static const int ACL_ERROR_DUMP_ALREADY_RUN ACL_MAYBE_UNUSED = 100044;
static const int ACL_ERROR_DUMP_NOT_RUN ACL_MAYBE_UNUSED = 100045;
static const int ACL_ERROR_PROF_REPEAT_SUBSCRIBE ACL_MAYBE_UNUSED = 148046;
static const int ACL_ERROR_PROF_API_CONFLICT ACL_MAYBE_UNUSED = 148047;
static const int ACL_ERROR_INVALID_MAX_OPQUEUE_NUM_CONFIG ACL_MAYBE_UNUSED = 148048;
static const int ACL_ERROR_INVALID_OPP_PATH ACL_MAYBE_UNUSED = 148049;
static const int ACL_ERROR_OP_UNSUPPORTED_DYNAMIC ACL_MAYBE_UNUSED = 148050;
static const int ACL_ERROR_RELATIVE_RESOURCE_NOT_CLEARED ACL_MAYBE_UNUSED = 148051;
static const int ACL_ERROR_UNSUPPORTED_JPEG ACL_MAYBE_UNUSED = 148052;
static const int ACL_ERROR_INVALID_BUNDLE_MODEL_ID ACL_MAYBE_UNUSED = 148053;

static const int ACL_ERROR_BAD_ALLOC ACL_MAYBE_UNUSED = 200000;
static const int ACL_ERROR_API_NOT_SUPPORT ACL_MAYBE_UNUSED = 200001;
static const int ACL_ERROR_INVALID_DEVICE ACL_MAYBE_UNUSED = 200002;
static const int ACL_ERROR_MEMORY_ADDRESS_UNALIGNED ACL_MAYBE_UNUSED = 200003;
static const int ACL_ERROR_RESOURCE_NOT_MATCH ACL_MAYBE_UNUSED = 200004;
static const int ACL_ERROR_INVALID_RESOURCE_HANDLE ACL_MAYBE_UNUSED = 200005;
static const int ACL_ERROR_FEATURE_UNSUPPORTED ACL_MAYBE_UNUSED = 200006;
static const int ACL_ERROR_PROF_MODULES_UNSUPPORTED ACL_MAYBE_UNUSED = 200007;

static const int ACL_ERROR_STORAGE_OVER_LIMIT ACL_MAYBE_UNUSED = 300000;

static const int ACL_ERROR_INTERNAL_ERROR ACL_MAYBE_UNUSED = 500000;
static const int ACL_ERROR_FAILURE ACL_MAYBE_UNUSED = 500001;
static const int ACL_ERROR_GE_FAILURE ACL_MAYBE_UNUSED = 500002;
static const int ACL_ERROR_RT_FAILURE ACL_MAYBE_UNUSED = 500003;
static const int ACL_ERROR_DRV_FAILURE ACL_MAYBE_UNUSED = 500004;
static const int ACL_ERROR_PROFILING_FAILURE ACL_MAYBE_UNUSED = 500005;

typedef enum ACL_ANY_INT {
  ACL_DT_UNDEFINED = -1,
  ACL_FLOAT = 0,
  ACL_FLOAT16 = 1,
  ACL_INT8 = 2,
  ACL_INT32 = 3,
  ACL_UINT8 = 4,
  ACL_INT16 = 6,
  ACL_UINT16 = 7,
  ACL_UINT32 = 8,
  ACL_INT64 = 9,
  ACL_UINT64 = 10,
  ACL_DOUBLE = 11,
  ACL_BOOL = 12,
  ACL_STRING = 13,
  ACL_COMPLEX64 = 16,
  ACL_COMPLEX128 = 17,
  ACL_BF16 = 27,
  ACL_INT4 = 29,
  ACL_UINT1 = 30,
  ACL_COMPLEX32 = 33,
  ACL_HIFLOAT8 = 34,
  ACL_FLOAT8_E5M2 = 35,
  ACL_FLOAT8_E4M3FN = 36,
  ACL_FLOAT8_E8M0 = 37,
  ACL_FLOAT6_E3M2 = 38,
  ACL_FLOAT6_E2M3 = 39,
  ACL_FLOAT4_E2M1 = 40,
  ACL_FLOAT4_E1M2 = 41
} aclDataType;

typedef enum ACL_ANY_INT {
  ACL_FORMAT_UNDEFINED = -1,
  ACL_FORMAT_NCHW = 0,
  ACL_FORMAT_NHWC = 1,
  ACL_FORMAT_ND = 2,
  ACL_FORMAT_NC1HWC0 = 3,
  ACL_FORMAT_FRACTAL_Z = 4,
  ACL_FORMAT_NC1HWC0_C04 = 12,
  ACL_FORMAT_HWCN = 16,
  ACL_FORMAT_NDHWC = 27,
  ACL_FORMAT_FRACTAL_NZ = 29,
  ACL_FORMAT_NCDHW = 30,
  ACL_FORMAT_NDC1HWC0 = 32,
  ACL_FRACTAL_Z_3D = 33,
  ACL_FORMAT_NC = 35,
  ACL_FORMAT_NCL = 47
} aclFormat;

typedef enum ACL_ANY_UNSIGNED {
  ACL_OPT_DETERMINISTIC = 0,
  ACL_OPT_ENABLE_DEBUG_KERNEL = 1,
  ACL_OPT_STRONG_CONSISTENCY = 2
} aclSysParamOpt;

typedef enum ACL_ANY_UNSIGNED { ACL_DEBUG = 0, ACL_INFO = 1, ACL_WARNING = 2, ACL_ERROR = 3 } aclLogLevel;

typedef enum ACL_ANY_INT {
  ACL_CANN_ATTR_UNDEFINED = -1,
  ACL_CANN_ATTR_INF_NAN = 0,
  ACL_CANN_ATTR_BF16 = 1,
  ACL_CANN_ATTR_JIT_COMPILE = 2
} aclCannAttr;

/* This library has ACL_CANN_ATTR_INF_NAN and ACL_CANN_ATTR_BF16. It does not have ACL_CANN_ATTR_JIT_COMPILE, because
 * operators are not compiled. The library owns the list: do not free it. */
ACL_FUNC_VISIBILITY aclError aclGetCannAttributeList(const aclCannAttr** cannAttrList, size_t* num);
ACL_FUNC_VISIBILITY aclError aclGetCannAttribute(aclCannAttr cannAttr, int32_t* value); /* 1 if it has it, else 0 */

typedef enum ACL_ANY_INT {
  ACL_DEVICE_INFO_UNDEFINED = -1,
  ACL_DEVICE_INFO_AI_CORE_NUM = 0,
  ACL_DEVICE_INFO_VECTOR_CORE_NUM = 1,
  ACL_DEVICE_INFO_L2_SIZE = 2
} aclDeviceInfo;

/* AI_CORE_NUM and VECTOR_CORE_NUM: the cores that this process may use. L2_SIZE: the size of the largest cache in
 * bytes, or 0 if the system does not report it. */
ACL_FUNC_VISIBILITY aclError aclGetDeviceCapability(uint32_t deviceId, aclDeviceInfo deviceInfo, int64_t* value);

/* A data buffer is a pointer with a size. The caller still owns the memory. */
ACL_FUNC_VISIBILITY aclDataBuffer* aclCreateDataBuffer(void* data, size_t size);
ACL_FUNC_VISIBILITY aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer);
ACL_FUNC_VISIBILITY aclError aclUpdateDataBuffer(aclDataBuffer* dataBuffer, void* data, size_t size);
ACL_FUNC_VISIBILITY void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer);
ACL_FUNC_VISIBILITY uint32_t aclGetDataBufferSize(const aclDataBuffer* dataBuffer); /* at most UINT32_MAX */
ACL_FUNC_VISIBILITY size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer);

/* A tensor description holds a dtype, a shape and a format. Calls of operators by name take it. aclCreateTensorDesc
 * returns null if there is no memory, if numDims is negative, or if dims is null and numDims is not 0. */
ACL_FUNC_VISIBILITY aclTensorDesc* aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t* dims,
                                                       aclFormat format);
ACL_FUNC_VISIBILITY void aclDestroyTensorDesc(const aclTensorDesc* desc);
ACL_FUNC_VISIBILITY aclDataType aclGetTensorDescType(const aclTensorDesc* desc);
ACL_FUNC_VISIBILITY aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc);
/* The size in bytes, and the number of elements. Both are 0 if a dimension is unknown (-1), or if the number does not
 * fit in size_t. */
ACL_FUNC_VISIBILITY size_t aclGetTensorDescSize(const aclTensorDesc* desc);
ACL_FUNC_VISIBILITY size_t aclGetTensorDescElementCount(const aclTensorDesc* desc);
ACL_FUNC_VISIBILITY size_t aclGetTensorDescNumDims(const aclTensorDesc* desc);
ACL_FUNC_VISIBILITY int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index); /* -1 if there is none */
ACL_FUNC_VISIBILITY aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* dimSize);

/* For calls of operators by name. A name is optional. If it is set, it must be the name that the operator's definition
 * gives to this input or output: the call is refused otherwise. */
ACL_FUNC_VISIBILITY void aclSetTensorDescName(aclTensorDesc* desc, const char* name);
ACL_FUNC_VISIBILITY const char* aclGetTensorDescName(aclTensorDesc* desc); /* "" if it has none */
/* The format and the shape of the tensor in device memory, if they differ from those given to aclCreateTensorDesc. */
ACL_FUNC_VISIBILITY aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format);
ACL_FUNC_VISIBILITY aclError aclSetTensorShape(aclTensorDesc* desc, int numDims, const int64_t* dims);
/* Where the data is. A call copies an input that is placed in host memory, so that the program may free the memory as
 * soon as the call returns. */
typedef enum ACL_ANY_UNSIGNED {
  ACL_MEMTYPE_DEVICE = 0,
  ACL_MEMTYPE_HOST = 1,
  ACL_MEMTYPE_HOST_COMPILE_INDEPENDENT = 2
} aclMemType;
ACL_FUNC_VISIBILITY aclError aclSetTensorPlaceMent(aclTensorDesc* desc, aclMemType memType);
/* Gives a constant input its data, in place of the data buffer. The data is read when the operator is called. */
ACL_FUNC_VISIBILITY aclError aclSetTensorConst(aclTensorDesc* desc, void* dataBuffer, size_t length);

/* Converts float16 to float and back, rounding to nearest even. */
ACL_FUNC_VISIBILITY float aclFloat16ToFloat(aclFloat16 value);
ACL_FUNC_VISIBILITY aclFloat16 aclFloatToFloat16(float value);

/* The size of one element in bytes. 0 for a type whose elements are not whole bytes. */
ACL_FUNC_VISIBILITY size_t aclDataTypeSize(aclDataType dataType);

/* The SoC name of the current product. Null if DESCEND_PRODUCT names no known product. */
ACL_FUNC_VISIBILITY const char* aclrtGetSocName(void);

/* The latest failure in this thread, as one sentence. An empty string if nothing has failed. */
ACL_FUNC_VISIBILITY const char* aclGetRecentErrMsg(void);

/* Writes a log line of the program to stderr, unless its level is below ASCEND_GLOBAL_LOG_LEVEL. That environment
 * variable is the number of a level, and ACL_ERROR by default. */
ACL_FUNC_VISIBILITY void aclAppLog(aclLogLevel logLevel, const char* func, const char* file, uint32_t line,
                                   const char* fmt, ...);
#define ACL_APP_LOG(level, ...) aclAppLog(level, __func__, __FILE__, __LINE__, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_BASE_H_ */
