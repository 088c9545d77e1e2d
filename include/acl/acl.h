/* The whole runtime. Usable from C99. */
#ifndef DESCEND_ACL_ACL_H_
#define DESCEND_ACL_ACL_H_

#include "acl_base.h"
#include "acl_rt.h"

#endif /* DESCEND_ACL_ACL_H_ */
