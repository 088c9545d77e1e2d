/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_RING_ATTENTION_UPDATE_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_RING_ATTENTION_UPDATE_H_

#include "../aclnn_ring_attention_update.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_RING_ATTENTION_UPDATE_H_ */
