// How far two processors are apart.
#pragma once

namespace descend {

// Seconds in which a cache line comes from one processor to another, at best, of two threads that hand it to and fro
// for about `seconds`. 0 where they did not run side by side: there is one processor, or others were at work.
double handover_seconds(double seconds);

}  // namespace descend
