/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_ROTARY_POSITION_EMBEDDING_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_ROTARY_POSITION_EMBEDDING_H_

#include "../aclnn_rotary_position_embedding.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_ROTARY_POSITION_EMBEDDING_H_ */
