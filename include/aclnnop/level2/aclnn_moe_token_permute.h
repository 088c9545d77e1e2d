/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_PERMUTE_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_PERMUTE_H_

#include "../aclnn_moe_token_permute.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_MOE_TOKEN_PERMUTE_H_ */
