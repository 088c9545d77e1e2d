/* Life cycle of the library. Usable from C99. */
#ifndef DESCEND_ACL_ACL_H_
#define DESCEND_ACL_ACL_H_

#include "acl_base.h"
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* configPath is not read. Every acl and aclrt function needs aclInit first, but for aclGetRecentErrMsg and those that
 * create or destroy tensors, scalars, arrays and lists; the first phase of an operator does not. */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);

/* Waits for the work in flight and frees all that is left. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_H_ */
