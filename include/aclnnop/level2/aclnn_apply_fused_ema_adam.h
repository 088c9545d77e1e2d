/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_FUSED_EMA_ADAM_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_FUSED_EMA_ADAM_H_

#include "../aclnn_apply_fused_ema_adam.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_APPLY_FUSED_EMA_ADAM_H_ */
