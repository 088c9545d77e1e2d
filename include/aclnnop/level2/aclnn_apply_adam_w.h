/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_ADAM_W_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_ADAM_W_H_

#include "../aclnn_apply_adam_w.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_ADAM_W_H_ */
