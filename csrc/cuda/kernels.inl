// The bodies of all kernels, for any group; included into a namespace of its own by each implementation of Device.
#include "cuda/rows.inl"

#include "cuda/initialise.inl"
#include "cuda/lookup.inl"
#include "cuda/weight_grad.inl"

#include "cuda/trackers.inl"

#include "cuda/settle.inl"

#include "cuda/gradients.inl"
#include "cuda/update.inl"

#include "cuda/enter.inl"

#include "cuda/pieces.inl"
#include "cuda/row_steps.inl"
#include "cuda/snapshot.inl"
#include "cuda/unique.inl"
