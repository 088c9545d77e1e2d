/* Functions that Descend offers in addition to CANN's. C99. */
#ifndef DESCEND_DESCEND_H_
#define DESCEND_DESCEND_H_

#include "acl/acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, e.g. "0.1.0". */
ACL_FUNC_VISIBILITY const char* descendGetVersion(void);

/* Sets the product that the process's calls are checked against: "atlas-a3", "atlas-a2-training" (the default),
 * "atlas-a2-inference", "atlas-200i-500-a2", "atlas-inference", "atlas-training", "ascend-950" or "host". Any other
 * name is ACL_ERROR_INVALID_PARAM. The environment variable DESCEND_PRODUCT sets the product, too. */
ACL_FUNC_VISIBILITY aclError descendSetProduct(const char* name);
/* The name of the current product. An empty string if DESCEND_PRODUCT names no known product; aclGetRecentErrMsg then
 * reports that. */
ACL_FUNC_VISIBILITY const char* descendGetProduct(void);

/* The number of threads that one call may use. 0 sets the default again. A negative number is
 * ACL_ERROR_INVALID_PARAM. */
ACL_FUNC_VISIBILITY aclError descendSetNumThreads(int count);
ACL_FUNC_VISIBILITY int descendGetNumThreads(void);

/* The instruction set that the kernels use, such as "AVX3", "AVX2", "NEON" or "BASELINE". By default it is the best
 * that this CPU has; the environment variable DESCEND_ISA chooses another. */
ACL_FUNC_VISIBILITY const char* descendGetIsa(void);

/* To be called in a forked child. A child does not have its parent's threads, so a program whose threads call this
 * library cannot go on there. If aclInit was called before the fork, this function returns 1. Every first phase and
 * every call of the runtime then fails, with a sentence that says why. exit() ends the child with its status, and skips
 * everything that would wait for the parent's threads: destructors of globals, and handlers that were registered
 * earlier. If aclInit was not called, nothing changes and this function returns 0. */
ACL_FUNC_VISIBILITY int descendRefuseInChild(void);

/* While refuse is not 0, every first phase in the calling thread fails, with a sentence that says why. Whoever records
 * operators by himself, as Descend's graphs of torch_npu do, so refuses those that he would not see. Returns what was
 * set before. */
ACL_FUNC_VISIBILITY int descendRefuseInCapture(int refuse);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_H_ */
