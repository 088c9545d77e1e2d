// How far two processors are apart.
#pragma once

namespace descend {

// The shortest time, in seconds, that a cache line took from one processor to another, while two threads passed it back
// and forth for about `seconds`. 0 if they did not run at the same time: there is one processor, or others were busy.
double handover_seconds(double seconds);

}  // namespace descend
