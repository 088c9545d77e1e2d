/* A report of a program's calls of operators, with the products that would accept them. C99. */
#ifndef DESCEND_DESCEND_REPORT_H_
#define DESCEND_DESCEND_REPORT_H_

#include <stdint.h>

#include "acl/acl_base.h"
#include "descend_portability.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An argument: its name ("gamma") and its value ("FLOAT16[4, 32]"). The strides follow if a tensor is not contiguous,
 * and the format if it is padded, such as NC1HWC0. Null arguments are left out. */
typedef struct {
  const char* name;
  const char* value;
} descendArgument;

/* Calls with the same arguments and the same answer. The memory of their tensors may differ. */
typedef struct {
  const char* function; /* aclnnRmsNorm; for calls by name the type: ScaledMaskedSoftmax */
  const char* product;  /* the product that the calls were checked against */
  const descendArgument* arguments;
  uint64_t argument_count;
  uint64_t calls;       /* first phases, or calls by name */
  uint64_t runs;        /* second phases that have run */
  uint64_t nanoseconds; /* the time of these runs, each on the thread that computed it */
  aclnnStatus status;   /* the answer: 0, or why the calls were refused */
  const char* sentence; /* empty where they were accepted */
  const descendVerdict* verdicts;
  uint64_t verdict_count;
  /* 1 for a sum of several kinds of calls, else 0. The first 256 kinds of a function are listed one by one. Calls of
   * further kinds are added up, without arguments. A product's verdict is then its first refusal, if it would refuse
   * any of these calls. */
  int32_t others;
} descendRecordedCall;

/* 1: clears the record, and records the calls of all threads from now on. 0: stops recording, and keeps the record. Any
 * other number is ACL_ERROR_INVALID_PARAM. A forked child continues to record, with an empty record. */
ACL_FUNC_VISIBILITY aclError descendRecordCalls(int32_t on);

/* Calls each(call, context) for every entry of the record, in no particular order. Everything that `call` points to is
 * valid until `each` returns. Returns ACL_ERROR_INVALID_PARAM if `each` is null. */
ACL_FUNC_VISIBILITY aclError descendRecordedCalls(void (*each)(const descendRecordedCall* call, void* context),
                                                  void* context);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_REPORT_H_ */
