/* Base types of the C interface: names, values and layout as in CANN, usable from C99. */
#ifndef DESCEND_ACL_ACL_BASE_H_
#define DESCEND_ACL_ACL_BASE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ACL_FUNC_VISIBILITY __attribute__((visibility("default")))
#define ACL_MAYBE_UNUSED __attribute__((unused))
#else
#define ACL_FUNC_VISIBILITY
#define ACL_MAYBE_UNUSED
#endif

/* In C++ an enum holds any number of its type, as it does in C: what is none of its values is refused, and is not
 * undefined. The type is the one that compilers choose for CANN's: signed only where a value is negative. */
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

static const int ACL_ERROR_NONE ACL_MAYBE_UNUSED = 0;
static const int ACL_SUCCESS ACL_MAYBE_UNUSED = 0;

static const int ACL_ERROR_INVALID_PARAM ACL_MAYBE_UNUSED = 100000;
static const int ACL_ERROR_UNINITIALIZE ACL_MAYBE_UNUSED = 100001;
static const int ACL_ERROR_REPEAT_INITIALIZE ACL_MAYBE_UNUSED = 100002;
static const int ACL_ERROR_REPEAT_FINALIZE ACL_MAYBE_UNUSED = 100037;
static const int ACL_ERROR_BAD_ALLOC ACL_MAYBE_UNUSED = 200000;
static const int ACL_ERROR_API_NOT_SUPPORT ACL_MAYBE_UNUSED = 200001;
static const int ACL_ERROR_INVALID_DEVICE ACL_MAYBE_UNUSED = 200002;
static const int ACL_ERROR_MEMORY_ADDRESS_UNALIGNED ACL_MAYBE_UNUSED = 200003;
static const int ACL_ERROR_RESOURCE_NOT_MATCH ACL_MAYBE_UNUSED = 200004;
static const int ACL_ERROR_INVALID_RESOURCE_HANDLE ACL_MAYBE_UNUSED = 200005;
static const int ACL_ERROR_FEATURE_UNSUPPORTED ACL_MAYBE_UNUSED = 200006;
static const int ACL_ERROR_INTERNAL_ERROR ACL_MAYBE_UNUSED = 500000;
static const int ACL_ERROR_FAILURE ACL_MAYBE_UNUSED = 500001;
static const int ACL_ERROR_RT_FAILURE ACL_MAYBE_UNUSED = 500003;
static const int ACL_ERROR_RT_STREAM_SYNC_TIMEOUT ACL_MAYBE_UNUSED = 507046;

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
  ACL_COMPLEX32 = 33
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

/* A pointer and a size in one object; the memory stays the caller's. */
ACL_FUNC_VISIBILITY aclDataBuffer* aclCreateDataBuffer(void* data, size_t size);
ACL_FUNC_VISIBILITY aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer);
ACL_FUNC_VISIBILITY void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer);
ACL_FUNC_VISIBILITY size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer);

/* float16 to float and back; rounds to nearest even. */
ACL_FUNC_VISIBILITY float aclFloat16ToFloat(aclFloat16 value);
ACL_FUNC_VISIBILITY aclFloat16 aclFloatToFloat16(float value);

/* Bytes of one element; 0 for a type that has no whole number of them. */
ACL_FUNC_VISIBILITY size_t aclDataTypeSize(aclDataType dataType);

/* This thread's latest failure as one sentence; an empty string where nothing has failed. */
ACL_FUNC_VISIBILITY const char* aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_BASE_H_ */
