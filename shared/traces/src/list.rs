//! What the book shows: a row a figure. A chapter includes it as `traces/NAME.md`.

use lab_device::emulator::{Landing, Operation, Order};

use super::phases::{Ring, Who};
use super::tiles::Launch;
use super::{Figure, Run, Scene, barriers, lanes, phases, race, tiles};

/// A tile of 32 x 32.
const TRANSPOSE: &str = "R=32,C=32";
const STEP: (&str, &str) = ("ANCHOR: step", "ANCHOR_END: step");

pub(crate) const FIGURES: &[Figure] = &[
    Figure {
        name: "transpose",
        scene: Scene::Lanes(lanes::Scene {
            versions: &[
                lanes::Version {
                    name: "transpose",
                    kernel: "transpose",
                    file: "",
                    run: Run::of("playg:transpose", TRANSPOSE),
                    whole: true,
                },
                lanes::Version {
                    name: "transpose_tiled",
                    kernel: "transpose_tiled",
                    file: "",
                    run: Run::of("playg:transpose_tiled", TRANSPOSE),
                    whole: true,
                },
                lanes::Version {
                    name: "transpose_padded",
                    kernel: "transpose_tiled",
                    file: "",
                    run: Run::of("playg:transpose_padded", TRANSPOSE),
                    whole: true,
                },
            ],
            arrays: &[],
            pitch: 32,
            parts: &[],
            only: None,
            most: usize::MAX,
        }),
        caption: "The first warp of a block, at every load and store that it makes, as the emulator counted them: 32 \
                  × 32 floats, one tile, 8 warps. Compare the colours: without a tile the store touches 32 sectors. \
                  Through the tile it touches 4, but the load from the tile takes 32 wavefronts. With padding that \
                  load takes 1.",
    },
    Figure {
        name: "race",
        scene: Scene::Race(race::Scene {
            wrong: "tile_without_barrier",
            right: "tile_with_barrier",
        }),
        caption: "Threads 31 and 32 of the report above, in two runs of the emulator: in the order of their numbers, and in \
                  the reverse. What nobody has written is NaN.",
    },
    Figure {
        name: "phases",
        scene: Scene::Phases(phases::Scene {
            // One block, with more tiles along k than the ring has places.
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("matmul:v10_roles", "G=1,M=128,N=128,K=384")
            },
            kernel: "matmul_roles",
            between: ("ANCHOR: roles", "ANCHOR_END: roles"),
            around: None,
            rings: &[Ring {
                place: "place",
                what: "tile",
                array: "ring",
                prefix: "",
                places: 3,
                start: 0,
                full: 0,
                empty: Some(24),
            }],
            who: Who::Roles(&[
                ("producer", 256, 256),
                ("consumer 0", 0, 127),
                ("consumer 1", 128, 255),
            ]),
            merged: false,
            most: usize::MAX,
        }),
        caption: "One block, 6 tiles along k, a ring of 3 places. A filled circle is an arrival. The emulator \
                  delivers copies in random order (fixed seed). Watch tile 3: the producer requests it (event 32) \
                  only after both consumers have left place 0 (events 23 and 27).",
    },
    Figure {
        name: "turned",
        scene: Scene::Lanes(lanes::Scene {
            versions: &[lanes::Version {
                name: "v16_turned",
                kernel: "turn",
                file: "",
                run: Run::of("matmul:v16_turned", "G=1,M=128,N=128,K=64"),
                whole: true,
            }],
            arrays: &[],
            pitch: 32,
            // A place of the ring has 256 rows of A, then B in panels of 32 columns: a warp has columns of one.
            parts: &[lanes::Part {
                name: "b",
                from: 256 * 32 * 4,
                to: (256 + 128) * 32 * 4,
                pitch: 32,
                line: "",
            }],
            only: Some(Operation::SharedLoad),
            most: 16,
        }),
        caption: "The first warp’s 16 loads of B from shared memory, for 32 along k. A row of b is 32 floats, one for \
                  each bank, as TMA has left them. A load fetches 8 columns by 4 of k: lanes 0 to 15 read a chunk of 4 \
                  columns in each of four rows, lanes 16 to 31 another chunk. The swizzle has put these eight chunks \
                  into different banks: each load asks all 32 banks once, and is 1 wavefront.",
    },
    Figure {
        name: "shared",
        scene: Scene::Blocks(race::BlocksScene {
            runs: &[
                (
                    "one block",
                    Run {
                        settings: &["blocks=1"],
                        ..Run::of("qkv_v0", "B=1,NH=1,S=16,DHQK=64,DHHV=64")
                    },
                ),
                ("four blocks", Run::of("qkv_v0", "B=1,NH=1,S=16,DHQK=64,DHHV=64")),
            ],
            kernel: "qkv_grid_tile",
            array: "q_tile",
            rows: [1, 4],
            blocks: 2,
        }),
        caption: "Two elements of q_tile, in two runs: with one block, and with four, of which the first two are shown. Each \
                  block has its own q_tile. With four blocks, each of the two stores the element that the other one needs, \
                  and reads NaN: the memory that it reads was never written.",
    },
    Figure {
        name: "barriers",
        scene: Scene::Barriers(barriers::Scene {
            // Three tiles of keys for each of three blocks; its warps change places now and then.
            run: Run {
                order: Order::Starve(9),
                ..Run::of("qkv_v1:block_tile", "B=1,NH=1,S=192,DHQK=64,DHHV=64")
            },
            kernel: "qkv_block_tile",
        }),
        caption: "The first block of a problem with 192 positions: three tiles of keys, 4 warps. The emulator runs \
                  one warp at a time, until it waits; a fixed seed draws the order of the warps. Watch warp 2: it \
                  comes first to nine barriers. From step 37 on, at line 56 of the last tile, it comes last, and the \
                  other three wait for it. No barrier opens before its last warp has come.",
    },
    Figure {
        name: "parts",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("qkv_v2:v3_resident", "B=1,NH=1,S=256,DHQK=64,DHHV=64"),
            launches: &[
                Launch {
                    title: "Before the meeting",
                    file: "stages/qkv_v2/kernels/v3_resident.cu",
                    function: "store",
                    arrays: &["parts"],
                    stored: true,
                    tile: "part",
                    what: "part #",
                    bytes: 64 * 64 * 4,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "After the meeting",
                    file: "stages/qkv_v2/kernels/v3_resident.cu",
                    function: "collect",
                    arrays: &["parts"],
                    stored: false,
                    tile: "part",
                    what: "part #",
                    bytes: 64 * 64 * 4,
                    own: None,
                    row: "block",
                },
            ],
        }),
        caption: "The four blocks of a head of 256 rows. A number is the step in which a block stores (above) or \
                  reads (below) a part. Each block has the sum over its own rows, and stores it. Then it needs the \
                  parts of all blocks: so the blocks meet in between. For a head they wait for each other only this \
                  once.",
    },
    Figure {
        name: "causal",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fw_v0", "B=1,NH=1,S=256,DHQK=16,DHHV=16"),
            launches: &[Launch {
                title: "One head",
                file: "stages/vlstm_fw_v0/kernels/causal.cu",
                function: "causal_qkv",
                arrays: &["k", "v"],
                stored: false,
                tile: "tile",
                what: "tile # of K and V",
                bytes: 64 * 16 * 4,
                own: Some(("h", 64 * 16 * 4)),
                row: "rows of h",
            }],
        }),
        caption: "A head of 256 positions in tiles of 64. A row is a block, a column a tile of K and V; a number is the \
                  block's step in which it loads the tile. What is above the diagonal is never loaded: 10 tiles of 16. The \
                  block with the last rows has the most to do, and has number 0, so that it starts first.",
    },
    Figure {
        name: "online",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fw_v1", "B=1,NH=1,S=256,DHQK=16,DHHV=16"),
            launches: &[Launch {
                title: "One head",
                file: "stages/vlstm_fw_v1/kernels/online.cu",
                function: "vlstm_fw",
                arrays: &["k", "v"],
                stored: false,
                tile: "tile",
                what: "tile # of K and V",
                bytes: 64 * 16 * 4,
                own: Some(("h", 64 * 16 * 4)),
                row: "rows of h",
            }],
        }),
        caption: "A head of 256 positions in tiles of 64. A number is the block's step in which it loads a tile of K and V. \
                  Each block begins at the diagonal and goes back to tile 0: so the sum of the gates between a tile and the \
                  block's rows only grows.",
    },
    Figure {
        name: "keys",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("vlstm_fw_v2:v1_wgmma", "B=1,NH=1,S=320,DHQK=64,DHHV=64")
            },
            kernel: "vlstm_fw_wgmma",
            between: ("ANCHOR: producer", "ANCHOR_END: consumer"),
            around: Some(1),
            rings: &[
                Ring {
                    place: "query",
                    what: "Q",
                    array: "barriers",
                    prefix: "query",
                    places: 1,
                    start: 0,
                    full: 0,
                    empty: None,
                },
                Ring {
                    place: "keys",
                    what: "tile",
                    array: "barriers",
                    prefix: "keys.",
                    places: 2,
                    start: 0,
                    full: 8,
                    empty: Some(24),
                },
                Ring {
                    place: "values",
                    what: "tile",
                    array: "barriers",
                    prefix: "values.",
                    places: 2,
                    start: 0,
                    full: 40,
                    empty: Some(56),
                },
            ],
            who: Who::Roles(&[
                ("producer", 256, 256),
                ("consumer 0", 0, 127),
                ("consumer 1", 128, 255),
            ]),
            merged: true,
            most: 64,
        }),
        caption: "One block with three tiles of K and V, numbered in loading order, and two places for each; the \
                  first 64 events are shown, and what comes after them is “later”. A filled circle is an arrival: all \
                  8 warps must leave a place before it is filled again. K and V have places of their own, because a \
                  warp leaves K when it has the scores, and V only when they are multiplied. The emulator delivers \
                  copies in random order (fixed seed).",
    },
    Figure {
        name: "chunks",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fw_v3:v0_chunks", "B=1,NH=1,S=256,DHQK=16,DHHV=16"),
            launches: &[
                Launch {
                    title: "1. What each chunk adds",
                    file: "stages/vlstm_fw_v3/kernels/parts.cu",
                    function: "chunk_parts",
                    arrays: &["C_part"],
                    stored: true,
                    tile: "chunk",
                    what: "what chunk # adds",
                    bytes: 16 * 16 * 4,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "2. The walk",
                    file: "stages/vlstm_fw_v3/kernels/walk.cu",
                    function: "walk",
                    arrays: &["C_part"],
                    stored: false,
                    tile: "chunk",
                    what: "what chunk # adds",
                    bytes: 16 * 16 * 4,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "3. The outputs",
                    file: "stages/vlstm_fw_v3/kernels/outputs.cu",
                    function: "fetch",
                    arrays: &["C"],
                    stored: false,
                    tile: "chunk",
                    what: "the state ahead of chunk #",
                    bytes: 16 * 16 * 2,
                    own: None,
                    row: "block",
                },
            ],
        }),
        caption: "A head of 256 positions: four chunks, three launches. A number is the step in which a block stores \
                  what a chunk adds (launch 1), reads what a chunk adds (launch 2), or reads the state ahead of a \
                  chunk (launch 3). In the first and the last launch all chunks are taken at once. Only the walk goes \
                  from chunk to chunk: a recurrence needs an order, and this is all of it.",
    },
    Figure {
        name: "roles",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("vlstm_fw_v4:v1_roles", "B=1,NH=1,S=320,DHQK=64,DHHV=64")
            },
            kernel: "vlstm_fw_roles",
            between: ("Anchors at_anchors", ""),
            around: Some(1),
            rings: &[
                Ring {
                    place: "place",
                    what: "chunk",
                    array: "places",
                    prefix: "places.",
                    places: 4,
                    start: 0,
                    full: 0,
                    empty: Some(32),
                },
                Ring {
                    place: "pairs",
                    what: "pairs of chunk",
                    array: "pairs",
                    prefix: "pairs.",
                    places: 2,
                    start: 0,
                    full: 0,
                    empty: Some(16),
                },
            ],
            who: Who::Roles(&[("scan", 256, 383), ("scores", 128, 255), ("state", 0, 127)]),
            merged: true,
            most: 64,
        }),
        caption: "One block with five chunks, and places for four; the first 64 events are shown, and what comes \
                  after them is “later”. Watch who is ahead: the scan asks for a chunk as soon as a place is free, \
                  the scores follow, and the state is last. None of them waits for all others: each waits for one \
                  barrier of a place. The emulator delivers copies in random order (fixed seed).",
    },
    Figure {
        name: "step",
        scene: Scene::Lanes(lanes::Scene {
            versions: &[
                lanes::Version {
                    name: "v0_simple",
                    kernel: "vlstm_step_simple",
                    file: "",
                    run: Run::of("vlstm_step:v0_simple", "B=1,NH=1,DHQK=16,DHHV=128"),
                    whole: false,
                },
                lanes::Version {
                    name: "v1_packs",
                    kernel: "vlstm_step_packs",
                    file: "",
                    run: Run::of("vlstm_step:v1_packs", "B=1,NH=1,DHQK=16,DHHV=128"),
                    whole: false,
                },
            ],
            arrays: &["C"],
            pitch: 128,
            parts: &[],
            only: None,
            most: 16,
        }),
        caption: "The first warp's first 16 loads and stores of C, a state of 16 × 128 floats. In v0 a lane has 4 bytes of a \
                  row, and loads the next row when it has stored this one. In v1 it has 16 bytes, and asks for eight rows \
                  before it stores the first: four times the bytes for each instruction, eight loads on their way at once.",
    },
    Figure {
        name: "split",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fwbw_v0", "B=1,NH=1,S=192,DHQK=16,DHHV=16"),
            launches: &[
                Launch {
                    title: "The kernel of dq",
                    file: "stages/vlstm_fwbw_v0/kernels/backward.cu",
                    function: "vlstm_backward_q",
                    arrays: &["k", "v"],
                    stored: false,
                    tile: "tile",
                    what: "tile # of K and V",
                    bytes: 64 * 16 * 4,
                    own: Some(("dq", 64 * 16 * 4)),
                    row: "rows of dq",
                },
                Launch {
                    title: "The kernel of dk and dv",
                    file: "stages/vlstm_fwbw_v0/kernels/backward.cu",
                    function: "vlstm_backward_kv",
                    arrays: &["q", "dh"],
                    stored: false,
                    tile: "tile",
                    what: "tile # of Q and dh",
                    bytes: 64 * 16 * 4,
                    own: Some(("dk", 64 * 16 * 4)),
                    row: "rows of dk, dv",
                },
            ],
        }),
        caption: "A head of 192 positions in tiles of 64. A number is the step in which a block loads a tile. The kernel of dq \
                  owns rows of Q, and K and V come past it up to the diagonal. The kernel of dk and dv owns rows of K and V, \
                  and Q and dh come past it from the diagonal on. Each block writes its own rows: nobody adds to what another \
                  one has written.",
    },
    Figure {
        name: "twins",
        scene: Scene::Lanes(lanes::Scene {
            versions: &[
                lanes::Version {
                    name: "rows",
                    kernel: "rows_times_rows",
                    file: "shared/cuda/lab/products.cuh",
                    run: Run {
                        file: "stages/vlstm_fwbw_v1/kernels/backward.cu",
                        ..Run::of("vlstm_fwbw_v1:rows", "B=1,NH=1,S=64,DHQK=16,DHHV=16")
                    },
                    whole: false,
                },
                lanes::Version {
                    name: "twins",
                    kernel: "rows_times_rows",
                    file: "shared/cuda/lab/products.cuh",
                    run: Run {
                        file: "stages/vlstm_fwbw_v1/kernels/backward.cu",
                        ..Run::of("vlstm_fwbw_v1:twins", "B=1,NH=1,S=64,DHQK=16,DHHV=16")
                    },
                    whole: false,
                },
            ],
            arrays: &[],
            pitch: 68,
            parts: &[
                lanes::Part {
                    name: "a",
                    from: 0,
                    to: 64 * 68 * 4,
                    pitch: 68,
                    line: "load_fours(a_i[i]",
                },
                lanes::Part {
                    name: "b",
                    from: 64 * 68 * 4,
                    to: 2 * 64 * 68 * 4,
                    pitch: 68,
                    line: "load_fours(b_j[j]",
                },
            ],
            only: Some(Operation::SharedLoad),
            // Of four columns: 8 rows of a, 4 of b.
            most: 12,
        }),
        caption: "The first warp’s loads for four columns of one product, 16 bytes a lane: 8 loads of its rows of a, \
                  then 4 of its rows of b. Compare the banks, where a row is a wavefront. In rows, a load of b brings \
                  16 different rows, and lanes 16 apart ask for the same one: 4 wavefronts. In twins, lanes two apart \
                  ask for the same row: 2 wavefronts. A load of a takes 2 in both. No load has a bank conflict. All 12 \
                  loads take 32 wavefronts in rows and 24 in twins.",
    },
    Figure {
        name: "skip",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                file: "stages/vlstm_fwbw_v2/kernels/v4_skip.cu",
                ..Run::of("vlstm_fwbw_v2:v4_skip", "B=1,NH=1,S=256,DHQK=64,DHHV=64")
            },
            kernel: "vlstm_keys_skipping",
            between: ("int tile = share.longer", ""),
            around: Some(1),
            rings: &[
                Ring {
                    place: "rows",
                    what: "tile",
                    array: "barriers",
                    prefix: "rows.",
                    places: 4,
                    start: 0,
                    full: 8,
                    empty: Some(40),
                },
                Ring {
                    place: "sums",
                    what: "sums of tile",
                    array: "barriers",
                    prefix: "sums.",
                    places: 2,
                    start: 0,
                    full: 72,
                    empty: Some(88),
                },
            ],
            who: Who::Roles(&[
                ("producer", 256, 256),
                ("warpgroup 0", 0, 127),
                ("warpgroup 1", 128, 255),
                ("adder", 288, 319),
            ]),
            merged: true,
            most: 64,
        }),
        caption: "One block with its 128 positions, and four tiles of 64 rows that come past; the first 64 events are \
                  shown, and what comes after them is “later”. A filled circle is an arrival. The 64 rows of tile 0 \
                  come before all positions of warpgroup 1. So warpgroup 1 leaves tile 0 at event 17, before it is \
                  there, and sends sums of 0. It has tile 1 at event 23. Warpgroup 0 still works with tile 0, and has \
                  tile 1 at event 28. The adder waits for the sums of all 8 warps. The emulator delivers copies in \
                  random order (fixed seed).",
    },
    Figure {
        name: "back",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fwbw_v3:v0_chunks", "B=1,NH=1,S=256,DHQK=16,DHHV=16"),
            launches: &[
                Launch {
                    title: "1. The walk of the forward pass",
                    file: "stages/vlstm_fw_v3/kernels/walk.cu",
                    function: "walk",
                    arrays: &["C_part"],
                    stored: false,
                    tile: "chunk",
                    what: "what chunk # adds to C",
                    bytes: 16 * 16 * 4,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "2. The walk back",
                    file: "stages/vlstm_fwbw_v3/kernels/walk.cu",
                    function: "walk_back",
                    arrays: &["dC_part"],
                    stored: false,
                    tile: "chunk",
                    what: "what chunk # adds to dC",
                    bytes: 16 * 16 * 4,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "3. dq",
                    file: "stages/vlstm_fwbw_v3/kernels/gradients.cu",
                    function: "chunk_gradients",
                    arrays: &["C"],
                    stored: false,
                    tile: "chunk",
                    what: "C ahead of chunk #",
                    bytes: 16 * 16 * 2,
                    own: None,
                    row: "block",
                },
                Launch {
                    title: "4. dk and dv, a launch each",
                    file: "stages/vlstm_fwbw_v3/kernels/gradients.cu",
                    function: "chunk_gradients",
                    arrays: &["dC"],
                    stored: false,
                    tile: "chunk",
                    what: "dC behind chunk #",
                    bytes: 16 * 16 * 2,
                    own: None,
                    row: "block",
                },
            ],
        }),
        caption: "A head of 256 positions: four chunks. A number is the step in which a block reads what belongs to a \
                  chunk. The launches between are left out. The walk of the forward pass goes from the first chunk to \
                  the last, and leaves C ahead of each. The walk back goes from the last chunk to the first, and \
                  leaves dC behind each. Then no order is left: dq of all chunks is made at once from C, dk and dv \
                  from dC.",
    },
    Figure {
        name: "walks",
        scene: Scene::Tiles(tiles::Scene {
            run: Run::of("vlstm_fwbw_v4:v1_together", "B=1,NH=1,S=256,DHQK=16,DHHV=16"),
            launches: &[Launch {
                title: "One launch",
                file: "stages/vlstm_fwbw_v4/kernels/gradients.cu",
                function: "walk",
                arrays: &["q_dq", "k_dk"],
                stored: true,
                tile: "chunk",
                what: "the dot products of chunk #",
                bytes: 64 * 4,
                own: None,
                row: "block",
            }],
        }),
        caption: "A head of 256 positions: four chunks, three blocks of one launch. A number is the step in which a \
                  block stores the dot products of a chunk, q · dq or k · dk: then it has that chunk’s dq or dk. Block \
                  0 makes dq, from the first chunk to the last, and C is its state. Block 1 makes dk, from the last \
                  chunk to the first, and dC is its state. Block 2 makes dv, and walks as block 1 does; it stores no \
                  dot products, and is not drawn. No block waits for another one.",
    },
    Figure {
        name: "exchange",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("lstm_fused:v2_cluster_fw", "T=3,B=1,I=4,H=16")
            },
            kernel: "lstm_spread",
            between: STEP,
            around: Some(2),
            rings: &[Ring {
                place: "box",
                what: "h of step",
                array: "two",
                prefix: "bars",
                places: 2,
                start: 1,
                full: 0,
                empty: None,
            }],
            who: Who::Blocks(2),
            merged: true,
            most: 64,
        }),
        caption: "Three steps of 16 units, over a cluster of eight blocks; the first two blocks are shown, and the \
                  first 64 events. What comes after them is “later”. A bar is a box: the numbers of h that have come, \
                  from all blocks. A block goes on when its own box is full. It does not ask whether another block \
                  has what it needs. The last row of each table is expected bytes that nobody sends.",
    },
    Figure {
        name: "dh_parts",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                file: "stages/lstm_fused/kernels/v3_tensor_back.cu",
                ..Run::of("lstm_fused:v3_tensor", "T=3,B=4,I=8,H=64")
            },
            kernel: "lstm_tensor_back",
            between: ("ANCHOR: step_back", "ANCHOR_END: step_back"),
            around: Some(1),
            rings: &[Ring {
                place: "box",
                what: "parts for step",
                array: "",
                prefix: "slices",
                places: 2,
                start: 1,
                full: 28672,
                empty: None,
            }],
            who: Who::Blocks(1),
            merged: true,
            most: 64,
        }),
        caption: "The backward pass of 64 units and 4 rows, three steps, over a cluster of eight blocks, as block 0 \
                  sees it. Step 0 is the last of the sequence. A part is what the da of \
                  one block adds to dh of another block’s units. Eight parts of 640 bytes fill a box, one from each \
                  block, its own too. When the box is full, the block adds them up. With each part comes a word, by \
                  which the others know that the sender has read its box; its four bytes count at the same barrier. \
                  The last two rows of the table are expected bytes that nobody sends.",
    },
    Figure {
        name: "slices",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("slstm_fused:v1_heads_fw", "T=4,B=1,NH=1,DH=128")
            },
            kernel: "slstm_heads",
            between: STEP,
            around: Some(1),
            rings: &[Ring {
                place: "box",
                what: "h of step",
                array: "",
                prefix: "slices",
                places: 2,
                start: 1,
                full: 22784,
                empty: None,
            }],
            who: Who::Blocks(2),
            merged: true,
            most: 64,
        }),
        caption: "A head of 128 units over a cluster of two blocks, four steps. A block's slice of h comes in one \
                  copy. With it goes a word, by which the others know that the sender has read the box of the step \
                  before: a copy alone does not say so. Its four bytes count at the barrier of the slice, so that a block \
                  begins a step when it has both. The last two rows of each table are expected bytes that nobody sends.",
    },
    Figure {
        name: "meeting",
        scene: Scene::Phases(phases::Scene {
            run: Run {
                copies: Landing::Random(5),
                ..Run::of("mlp_fused:v2_resident", "N=2,B=1,V=16,E=8,H=8")
            },
            kernel: "resident",
            between: ("ANCHOR: exchange", "float dh = 0;"),
            around: Some(1),
            rings: &[Ring {
                place: "box",
                what: "numbers of meeting",
                array: "two",
                prefix: "bars",
                places: 2,
                start: 1,
                full: 0,
                empty: None,
            }],
            who: Who::Blocks(1),
            merged: true,
            most: 64,
        }),
        caption: "Two training steps in one launch of 16 blocks, as block 0 sees them. A training step has one \
                  meeting. Each block has a part of the vocabulary, and sends its maximum and its sums to all boxes. \
                  The block that has the target also sends its row of w2, and the block that has the next token sends \
                  its embedding. When the box is full, the block has all that the loss and the gradient need from \
                  elsewhere. The last two rows are expected bytes that nobody sends.",
    },
];
