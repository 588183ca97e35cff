#include "grids.h"

namespace pagoda {

Grid grids[kNumGrids];

}  // namespace pagoda
