// What stands before a call of what not every GPU has. shared/app/src/instructions.rs has the table, and defines these for
// the GPU that is asked for; where nobody has, it has everything.
#pragma once
#ifndef EMU_NEEDS_redux_sync
#define EMU_NEEDS_redux_sync
#define EMU_NEEDS_griddepcontrol
#define EMU_NEEDS_this_cluster__
#define EMU_NEEDS_wmma_bf16
#define EMU_NEEDS_wmma_tf32
#endif
