/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_FLASH_ATTENTION_SCORE_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_FLASH_ATTENTION_SCORE_H_

#include "../aclnn_flash_attention_score.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_FLASH_ATTENTION_SCORE_H_ */
