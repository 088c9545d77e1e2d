/* Empty: this library has no models. Programs include this header together with acl.h. */
#ifndef DESCEND_ACL_ACL_MDL_H_
#define DESCEND_ACL_ACL_MDL_H_

#include "acl_base.h"

#endif /* DESCEND_ACL_ACL_MDL_H_ */
