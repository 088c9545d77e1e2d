/* Included by the header of every operator. */
#ifndef DESCEND_ACLNN_ACLNN_BASE_H_
#define DESCEND_ACLNN_ACLNN_BASE_H_

/* Some of CANN's headers of operators include it, and programs rely on it. */
#ifdef __cplusplus
#include <array>
#endif

#include "../acl/acl_rt.h"
#include "acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both do nothing and succeed. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnInit(const char* configPath);
ACL_FUNC_VISIBILITY aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNN_ACLNN_BASE_H_ */
