// How an operand of a product lies in memory: its neighbours follow one another along the sum over k, or across it.
#pragma once

namespace lab {

enum Along { ALONG_K, ACROSS_K };

}  // namespace lab
