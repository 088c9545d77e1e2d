/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_UNPERMUTE_GRAD_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_UNPERMUTE_GRAD_H_

#include "../aclnn_moe_token_unpermute_grad.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_UNPERMUTE_GRAD_H_ */
