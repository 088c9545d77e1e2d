// Suppresses warnings about what Descend does on purpose.
#pragma once

#include <c10/util/Exception.h>

namespace descend {

class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace descend
