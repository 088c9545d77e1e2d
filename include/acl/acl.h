/* Life cycle of the library. Usable from C99. */
#ifndef DESCEND_ACL_ACL_H_
#define DESCEND_ACL_ACL_H_

#include "acl_base.h"
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* configPath is not read. Everything but aclGetRecentErrMsg and the creation of tensors and arrays needs aclInit first.
 */
ACL_FUNC_VISIBILITY aclError aclInit(const char* configPath);

/* Waits for the work in flight and frees all that is left. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACL_ACL_H_ */
