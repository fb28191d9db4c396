//! cp.async.bulk.tensor: a thread asks for a box of a tensor.

use std::ffi::c_void;

use super::asynchronous::{join, send, touch, wait_until_initialised};
use super::map_shared;
use crate::abi;
use crate::access::{How, Kind};
use crate::completion::What;
use crate::completion::tensor::{CHUNK, Move, TensorMap, Tile};
use crate::running::Running;
use crate::thread::Fault;

/// Bytes to a multiple of which a tile begins.
const TILE: usize = 128;
/// The same of a map.
const MAP: usize = 64;

pub(super) fn tensor_copy(
    thread: &mut Running,
    shared: *mut c_void,
    map: *const c_void,
    at: *const c_void,
    rank: u32,
    barrier: *mut c_void,
    blocks: u32,
) {
    let stores = barrier.is_null();
    // SAFETY: the headers pass an array of so many.
    let at = unsafe { std::slice::from_raw_parts(at.cast::<i32>(), rank as usize) };
    let map = look_up(thread, map, at, stores);
    if !(shared as usize).is_multiple_of(TILE) {
        let what = format!("a tensor copy's tile, {:#x},", shared as usize);
        thread.fail(Fault::Misaligned { what, bytes: TILE as u32 });
    }
    let Some(tile) = thread.block().to_window(shared as usize) else {
        let what = "tensor copy: expected a tile in this block's shared memory".into();
        thread.fail(Fault::NotMapped(what));
    };
    let own = moves(thread, &map, at, tile, stores);
    // Multicast: each of the blocks gets what it gets.
    let receivers = if blocks & abi::MULTICAST == 0 { 1 } else { (blocks & 0xFFFF).count_ones() };
    for _ in 0..receivers {
        let pc = thread.pc();
        if let Some((check, _)) = thread.check() {
            check.bulk(pc, stores, || map.traffic(at, stores));
        }
    }
    if stores {
        let how = How { proxy: true, ..How::default() };
        return own.iter().filter(|m| m.valid > 0).for_each(|m| {
            join(thread, m.global, m.shared, m.valid, how, blocks & abi::ADD != 0);
        });
    }
    if blocks & abi::MULTICAST == 0 {
        return load(thread, &map, &own, barrier as usize);
    }
    for rank in (0..16).filter(|rank| blocks >> rank & 1 != 0) {
        let there = own.iter().map(|m| Move {
            shared: map_shared(thread, m.shared as *const c_void, rank) as usize,
            ..*m
        });
        let there: Vec<Move> = there.collect();
        let barrier = map_shared(thread, barrier, rank) as usize;
        load(thread, &map, &there, barrier);
    }
}

/// The map at an address, if such a copy may use it.
fn look_up(thread: &mut Running, map: *const c_void, at: &[i32], stores: bool) -> TensorMap {
    if !(map as usize).is_multiple_of(MAP) {
        let what = format!("a tensor map, {:#x},", map as usize);
        thread.fail(Fault::Misaligned { what, bytes: MAP as u32 });
    }
    // SAFETY: the kernel's own address of what the headers declare to be so large.
    let Some(map) = TensorMap::decode(unsafe { &*map.cast() }) else {
        thread.fail(Fault::Trap("tensor copy: expected a tensor map, got other bytes".into()));
    };
    match refused(&map, at, stores) {
        Some(wrong) => thread.fail(Fault::NotMapped(format!("tensor copy: {wrong}"))),
        None => map,
    }
}

/// What a GPU calls an illegal instruction.
fn refused(map: &TensorMap, at: &[i32], stores: bool) -> Option<String> {
    let (rank, element) = (map.rank(), map.element as usize);
    if rank != at.len() {
        return Some(format!("expected {rank} coordinates, as the map has, got {}", at.len()));
    }
    let first = at[0];
    if !(first.unsigned_abs() as usize * element).is_multiple_of(CHUNK) {
        return Some(format!(
            "expected the innermost coordinate at a multiple of {CHUNK} bytes, got {first}, of \
             {element} bytes each"
        ));
    }
    let d = at.iter().position(|&c| c < 0).filter(|_| stores)?;
    Some(format!("expected a store at no negative coordinate, got {} along dimension {d}", at[d]))
}

/// Where each piece of the box lies.
fn moves(
    thread: &mut Running,
    map: &TensorMap,
    at: &[i32],
    tile: usize,
    stores: bool,
) -> Vec<Move> {
    let mut all = Vec::new();
    for row in map.rows_at(at, tile, stores) {
        for chunk in map.chunks(&row) {
            let Some(shared) = thread.block().in_window(chunk.place) else {
                let what =
                    format!("tensor copy: a box reaches byte {} of the shared window", chunk.place);
                thread.fail(Fault::NotMapped(what));
            };
            all.push(Move { shared, global: chunk.address, valid: chunk.valid, bytes: CHUNK });
        }
    }
    Move::merge(all)
}

fn load(thread: &mut Running, map: &TensorMap, moves: &[Move], barrier: usize) {
    wait_until_initialised(thread, barrier);
    let how = How { proxy: true, ..How::default() };
    let pc = thread.pc();
    for m in moves {
        if m.valid > 0 {
            thread.look_at(m.global, m.valid, Kind::AsyncRead, how, pc);
        }
        thread.look_at(m.shared, m.bytes, Kind::AsyncWrite, how, pc);
    }
    touch(thread, barrier, Kind::StrongWrite, true);
    let moves = moves.into();
    send(thread, What::Tile(Tile { moves, nan: map.fills_nan }), map.bytes(), barrier);
}
