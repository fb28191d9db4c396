#pragma once
#include "emu_thrust.h"
