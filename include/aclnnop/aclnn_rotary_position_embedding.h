/* Rotary position embedding: each pair of a row's elements turned by an angle of its own. See
   docs/operators/rotary_position_embedding.md.

   Written by `python -m tools.generate` from the operator's table; do not edit. */
#ifndef DESCEND_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_
#define DESCEND_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_

#include "../aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

ACL_FUNC_VISIBILITY aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor* x, const aclTensor* cos,
                                                                             const aclTensor* sin, int64_t mode,
                                                                             aclTensor* out, uint64_t* workspaceSize,
                                                                             aclOpExecutor** executor);

ACL_FUNC_VISIBILITY aclnnStatus aclnnRotaryPositionEmbedding(void* workspace, uint64_t workspaceSize,
                                                             aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* DESCEND_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_ */
