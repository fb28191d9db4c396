//! The options of single versions.

use lab_harness::Setting;

/// The option that says how a product is cut.
pub(crate) const TILE: Setting = Setting::choice(
    "tile",
    "rows and columns of a tile, and blocks for each; auto: by the size",
    &[
        "auto",
        "128x256",
        "64x64",
        "128x128",
        "128x128/2",
        "128x128/3",
        "128x128/4",
        "128x128/5",
        "128x128/6",
        "128x128/7",
        "128x128/8",
    ],
);

/// The option that says whether all multiprocessors share the tiles.
pub(crate) const PARTS: Setting = Setting::choice(
    "tile",
    "grid: parts of whole tiles for all multiprocessors; auto: by the size, that or as the parent",
    &["auto", "grid"],
);

/// The option that says how narrow.
pub(crate) const LAST: Setting = Setting::number(
    "last",
    "columns of a tile of the last round, 256 in v20 and v21 as others, by the version's own kernel; \
     0: the product by v17; -1: by the size",
    "-1",
);
