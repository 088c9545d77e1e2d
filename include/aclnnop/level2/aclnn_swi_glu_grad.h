/* Programs for CANN 7 and 8 include the header by this path. */
#ifndef DESCEND_ACLNNOP_LEVEL2_ACLNN_SWI_GLU_GRAD_H_
#define DESCEND_ACLNNOP_LEVEL2_ACLNN_SWI_GLU_GRAD_H_

#include "../aclnn_swi_glu_grad.h"

#endif /* DESCEND_ACLNNOP_LEVEL2_ACLNN_SWI_GLU_GRAD_H_ */
