// The last launches of a training step: lab/optimizer.cuh, over all parameters at once.
#include "lab/optimizer.cuh"

using namespace lab;
