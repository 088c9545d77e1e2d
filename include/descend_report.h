/* Which calls of operators a program made, and on which products they would be accepted. C99. */
#ifndef DESCEND_DESCEND_REPORT_H_
#define DESCEND_DESCEND_REPORT_H_

#include <stdint.h>

#include "acl/acl_base.h"
#include "descend_portability.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An argument: "gamma" and "FLOAT16[4, 32]". Strides follow where a tensor is not contiguous, the format where it is
 * not ND. Arguments that were null are left out. */
typedef struct {
  const char* name;
  const char* value;
} descendArgument;

/* Calls with the same arguments and the same answer, whatever the memory of their tensors. */
typedef struct {
  const char* function; /* aclnnRmsNorm; of a call by name the type: ScaledMaskedSoftmax */
  const char* product;  /* the product that the calls were checked against */
  const descendArgument* arguments;
  uint64_t argument_count;
  uint64_t calls;       /* first phases, or calls by name */
  uint64_t runs;        /* second phases that have been computed */
  uint64_t nanoseconds; /* what these took, on the thread that computed each of them */
  aclnnStatus status;   /* the answer: 0, or why the calls were refused */
  const char* sentence; /* empty where they were accepted */
  const descendVerdict* verdicts;
  uint64_t verdict_count;
  /* Of one function 256 kinds of calls are told apart. Those of all further kinds are added up, without arguments. A
   * verdict is then the first refusal by the product, if it would refuse any of these calls. */
  int32_t others;
} descendRecordedCall;

/* 1: forgets what was recorded, and records from now on the calls of all threads. 0: no more calls are recorded; those
 * that were stay. ACL_ERROR_INVALID_PARAM for any other number. A forked child goes on recording, from nothing. */
ACL_FUNC_VISIBILITY aclError descendRecordCalls(int32_t on);

/* Calls each(call, context) for what has been recorded, in no order. What a call points to lives until each returns.
 * ACL_ERROR_INVALID_PARAM where each is null. */
ACL_FUNC_VISIBILITY aclError descendRecordedCalls(void (*each)(const descendRecordedCall* call, void* context),
                                                  void* context);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_REPORT_H_ */
