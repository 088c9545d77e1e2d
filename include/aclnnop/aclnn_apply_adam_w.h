/* Programs that call aclnnApplyAdamW include the header by this path. */
#ifndef DESCEND_ACLNNOP_ACLNN_APPLY_ADAM_W_H_
#define DESCEND_ACLNNOP_ACLNN_APPLY_ADAM_W_H_

#include "aclnn_apply_adam_w_v2.h"

#endif /* DESCEND_ACLNNOP_ACLNN_APPLY_ADAM_W_H_ */
