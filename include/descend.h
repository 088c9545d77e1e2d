/* What Descend offers C programs beyond CANN's interface. C99. */
#ifndef DESCEND_DESCEND_H_
#define DESCEND_DESCEND_H_

#include "acl/acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, e.g. "0.1.0". */
ACL_FUNC_VISIBILITY const char* descendGetVersion(void);

/* The product that calls are checked against, for the process: "atlas-a3", "atlas-a2-training" (where nothing else was
 * said), "atlas-a2-inference", "atlas-200i-500-a2", "atlas-inference", "atlas-training", "ascend-950" or "host".
 * The environment variable DESCEND_PRODUCT says it too. ACL_ERROR_INVALID_PARAM for any other name. */
ACL_FUNC_VISIBILITY aclError descendSetProduct(const char* name);
/* The current product's name; an empty string where DESCEND_PRODUCT names none (aclGetRecentErrMsg says so). */
ACL_FUNC_VISIBILITY const char* descendGetProduct(void);

/* Threads that one call may use; 0 returns to the default, a negative count is ACL_ERROR_INVALID_PARAM. */
ACL_FUNC_VISIBILITY aclError descendSetNumThreads(int count);
ACL_FUNC_VISIBILITY int descendGetNumThreads(void);

/* The instruction set that the kernels use: "AVX3", "AVX2", "NEON", "BASELINE". DESCEND_ISA holds it down. */
ACL_FUNC_VISIBILITY const char* descendGetIsa(void);

/* Called in a forked child. A child does not have its parent's threads, so a program whose threads call this library
 * cannot go on there. If aclInit was called before the fork, every first phase and every call of the runtime fails from
 * now on, with a sentence that says why. exit() then ends the child with its status, and skips what would wait for the
 * parent's threads: destructors of globals, and handlers that were registered earlier. Returns 1 if so. If aclInit was
 * not called, nothing happens, and it returns 0. */
ACL_FUNC_VISIBILITY int descendRefuseInChild(void);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_DESCEND_H_ */
