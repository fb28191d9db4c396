//! Ranks that train together: how they find each other, say small things to each other, and learn that one has failed.
//!
//! Ranks are threads of one process ([`Group::of_threads`]) or processes, whose messages all go through rank 0 over TCP
//! ([`Group::connect`]). Tensors go this way only
//! between emulated devices: see [`crate::Communicator`].
//!
//! A message on the wire, all numbers little-endian:
//!
//! ```text
//! kind u8  number u64  length of the name u16  name  length of the bytes u32  bytes
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// The most bytes of a message, beside its first: emulated devices exchange tensors.
const MOST_BYTES: usize = 1 << 30;
/// The most bytes of the first message of a connection: a stranger on the port cannot ask for more memory.
const MOST_AT_FIRST: usize = 1 << 10;
/// What a rank says first, before anything of its own.
const GREETING: &str = "lab ranks 1";
/// How often a rank says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// How often somebody who waits looks for a failure that nobody has woken it for.
const LOOK: Duration = Duration::from_millis(100);

/// Where a rank is among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// Its number among the ranks of its host: that of its GPU.
    pub local: usize,
    /// Rank 0's host and port.
    pub address: (String, u16),
}

impl Place {
    /// Of the environment that a launcher has made: `torchrun` (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), `srun`
    /// (SLURM_…), `mpirun` (OMPI_COMM_WORLD_…). `None` where there is none, or one rank alone.
    ///
    /// # Errors
    /// [`Error::NoRanks`]: a variable is missing or no number, or a rank is not below the number of ranks.
    pub fn from_env() -> Result<Option<Self>, Error> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// The same, of variables that `of` tells.
    ///
    /// # Errors
    /// As [`Place::from_env`].
    pub fn from_variables(of: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        // A shell within a job of Slurm has its variables too: a step of its own has only what srun has started.
        let launchers = [
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ];
        let is_set =
            |(rank, world, _): &&(&str, &str, &str)| of(rank).is_some() && of(world).is_some();
        let Some((rank, world, local)) = launchers.iter().find(is_set) else { return Ok(None) };
        let number = |name: &str| -> Result<usize, Error> {
            let value = of(name);
            let parsed = value.as_deref().and_then(|value| value.parse().ok());
            parsed.ok_or_else(|| Error::NoRanks {
                what: name.into(),
                expected: "a number".into(),
                got: value.map_or_else(|| "none".into(), |value| format!("'{value}'")),
            })
        };
        let (rank_name, rank, world) = (*rank, number(rank)?, number(world)?);
        if rank >= world {
            let expected = format!("a rank below {world}, as many as there are");
            return Err(Error::NoRanks { what: rank_name.into(), expected, got: rank.to_string() });
        }
        if world == 1 {
            return Ok(None);
        }
        let local = number(local)?;
        let on_one_host = of("OMPI_COMM_WORLD_LOCAL_SIZE").is_some_and(|n| n == world.to_string());
        let host = of("MASTER_ADDR")
            .or_else(|| of("SLURM_STEP_NODELIST").map(|list| first_host(&list)))
            .or_else(|| on_one_host.then(|| "127.0.0.1".to_owned()));
        let host = host.ok_or_else(|| Error::NoRanks {
            what: "MASTER_ADDR".into(),
            expected: "the name or address of rank 0's host".into(),
            got: "none".into(),
        })?;
        let port = match of("MASTER_PORT") {
            Some(_) => number("MASTER_PORT")?,
            // Of one job the same, of two mostly not.
            None => {
                20000
                    + of("SLURM_JOB_ID").and_then(|id| id.parse::<usize>().ok()).unwrap_or(0)
                        % 10000
            }
        };
        // torchrun's own store has the port that it tells.
        let is_taken = of("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = port + usize::from(is_taken);
        let port =
            u16::try_from(port).ok().filter(|port| *port > 0).ok_or_else(|| Error::NoRanks {
                what: "MASTER_PORT".into(),
                expected: "1 to 65534".into(),
                got: port.to_string(),
            })?;
        Ok(Some(Self { rank, world, local, address: (host, port) }))
    }
}

/// Of Slurm's list of hosts, as `gpu[03-07,12],login1`.
fn first_host(list: &str) -> String {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let number =
        rest.strip_prefix('[').map_or("", |rest| rest.split(['-', ',', ']']).next().unwrap_or(""));
    format!("{name}{number}")
}

/// How a group has failed: the rank that has, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFailure {
    /// From 0.
    pub rank: usize,
    /// In words.
    pub reason: String,
}

impl From<RankFailure> for Error {
    fn from(RankFailure { rank, reason }: RankFailure) -> Self {
        Self::Rank { rank, reason }
    }
}

/// What a rank says in an exchange.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// Of each exchange under way, by its number, what each rank says, and how many have taken all of it.
    exchanges: BTreeMap<u64, (Vec<Option<Part>>, usize)>,
    /// Of each rank, whether it has ended as it should.
    ended: Vec<bool>,
    failure: Option<RankFailure>,
}

#[derive(Debug)]
struct Shared {
    world: usize,
    /// Ranks of this process, each of which takes what an exchange has gathered.
    takers: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn new(world: usize, takers: usize) -> Arc<Self> {
        let state = Mutex::new(State { ended: vec![false; world], ..State::default() });
        Arc::new(Self { world, takers, state, changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, number: u64, rank: usize, part: Part) {
        let mut state = self.state();
        let (parts, _) =
            state.exchanges.entry(number).or_insert_with(|| (vec![None; self.world], 0));
        parts[rank] = Some(part);
        self.changed.notify_all();
    }

    /// The first failure stays. Whether it is this one.
    fn fail(&self, failure: RankFailure) -> bool {
        let mut state = self.state();
        let is_first = state.failure.is_none();
        state.failure.get_or_insert(failure);
        self.changed.notify_all();
        is_first
    }
}

/// The sockets of a rank: of rank 0 one to each other, of another one to rank 0.
#[derive(Debug)]
struct Links {
    to: Vec<(usize, Mutex<TcpStream>)>,
    closed: AtomicBool,
}

impl Links {
    /// Whoever cannot be written to is found to have ended by who reads.
    fn send_to_all(&self, kind: Kind, number: u64, name: &str, bytes: &[u8]) {
        for (_, stream) in &self.to {
            let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = send(&mut *stream, kind, number, name, bytes);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// From a rank: its number and, in the bytes, how many it thinks there are.
    Hello = 1,
    /// From a rank: its part of an exchange.
    Part,
    /// From rank 0: one rank's part of an exchange, that rank in the first eight bytes.
    Gathered,
    /// The number of a rank that has failed, and why.
    Fail,
    /// I am here.
    Beat,
    /// I have ended as I should.
    Bye,
}

fn send(to: &mut impl Write, kind: Kind, number: u64, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut message = vec![kind as u8];
    message.extend(number.to_le_bytes());
    message.extend((name.len() as u16).to_le_bytes());
    message.extend(name.as_bytes());
    message.extend((bytes.len() as u32).to_le_bytes());
    message.extend(bytes);
    to.write_all(&message)
}

fn receive(from: &mut impl Read, most: usize) -> io::Result<(Kind, u64, String, Vec<u8>)> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut head = [0; 11];
    from.read_exact(&mut head)?;
    let kinds = [Kind::Hello, Kind::Part, Kind::Gathered, Kind::Fail, Kind::Beat, Kind::Bye];
    let kind = kinds.into_iter().find(|kind| *kind as u8 == head[0]);
    let kind = kind.ok_or_else(|| wrong("no message of a rank"))?;
    let number = u64::from_le_bytes(head[1..9].try_into().expect("eight"));
    let mut name = vec![0; usize::from(u16::from_le_bytes([head[9], head[10]]))];
    from.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|_| wrong("a name that is no text"))?;
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > most {
        return Err(wrong("a message that is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok((kind, number, name, bytes))
}

/// One rank of several. Whatever all must do, all do in the same order.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    world: usize,
    shared: Arc<Shared>,
    links: Option<Arc<Links>>,
    /// Exchanges that it has begun.
    exchanges: AtomicU64,
    limit: Duration,
}

impl Group {
    /// As long as a rank waits for another that should be there, where nothing else is said: `LAB_RANK_SECONDS`, or 20.
    pub fn default_limit() -> Duration {
        let said = std::env::var("LAB_RANK_SECONDS").ok().and_then(|text| text.parse().ok());
        let seconds = said.filter(|s: &f64| (0.1..=86400.0).contains(s)).unwrap_or(20.0);
        Duration::from_secs_f64(seconds)
    }

    /// Ranks that are threads of this process.
    pub fn of_threads(world: usize, limit: Duration) -> Vec<Self> {
        let shared = Shared::new(world, world);
        let of_rank = |rank| {
            let (shared, exchanges) = (Arc::clone(&shared), AtomicU64::new(0));
            Self { rank, world, shared, links: None, exchanges, limit }
        };
        (0..world).map(of_rank).collect()
    }

    /// Meets the other ranks, which are processes, at rank 0's address.
    ///
    /// # Errors
    /// [`Error::NoRanks`]: the port is in use, or not all have come within the limit; [`Error::Rank`]: one thinks that there are
    /// more or fewer ranks, or two have one number.
    pub fn connect(place: &Place, limit: Duration) -> Result<Self, Error> {
        let Place { rank, world, .. } = *place;
        let shared = Shared::new(world, 1);
        let streams =
            if rank == 0 { Self::accept(place, limit)? } else { Self::reach(place, limit)? };
        let wrong = |e: io::Error| no_ranks(place, "a connection".into(), e.to_string());
        let mut to = Vec::new();
        for (other, stream) in streams {
            stream.set_nodelay(true).map_err(wrong)?;
            stream.set_read_timeout(Some(limit)).map_err(wrong)?;
            stream.set_write_timeout(Some(limit)).map_err(wrong)?;
            to.push((other, Mutex::new(stream)));
        }
        let links = Arc::new(Links { to, closed: AtomicBool::new(false) });
        for (other, stream) in &links.to {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).try_clone();
            let (stream, other) = (stream.map_err(wrong)?, *other);
            let (shared, links) = (Arc::clone(&shared), Arc::clone(&links));
            thread::spawn(move || listen(rank, other, stream, &shared, &links, limit));
        }
        let beating = Arc::clone(&links);
        thread::spawn(move || {
            while !beating.closed.load(Ordering::Relaxed) {
                beating.send_to_all(Kind::Beat, 0, "", &[]);
                thread::sleep(BEAT.min(limit / 4));
            }
        });
        Ok(Self { rank, world, shared, links: Some(links), exchanges: AtomicU64::new(0), limit })
    }

    /// Of rank 0: waits for all others.
    fn accept(place: &Place, limit: Duration) -> Result<Vec<(usize, TcpStream)>, Error> {
        let (world, until) = (place.world, Instant::now() + limit);
        let (host, port) = (place.address.0.as_str(), place.address.1);
        // A host's own name may stand for an address that only it has.
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok();
        let address = if is_own { host } else { "0.0.0.0" };
        let listener = TcpListener::bind((address, port)).map_err(|e| {
            let expected = "a port that is free on this host (MASTER_PORT)".to_owned();
            no_ranks(place, expected, e.to_string())
        })?;
        listener
            .set_nonblocking(true)
            .map_err(|e| no_ranks(place, "a port".into(), e.to_string()))?;
        let mut come: Vec<(usize, TcpStream)> = Vec::new();
        let refuse = |come: &mut Vec<(usize, TcpStream)>,
                      last: &mut TcpStream,
                      failure: RankFailure| {
            for stream in come.iter_mut().map(|(_, stream)| stream).chain([last]) {
                let _ =
                    send(stream, Kind::Fail, failure.rank as u64, "", failure.reason.as_bytes());
            }
            Err(Error::from(failure))
        };
        while come.len() + 1 < world {
            let Ok((mut stream, _)) = listener.accept() else {
                if Instant::now() >= until {
                    let there = |rank: &usize| come.iter().any(|(other, _)| other == rank);
                    let missing: Vec<String> = (1..world)
                        .filter(|rank| !there(rank))
                        .map(|rank| rank.to_string())
                        .collect();
                    let expected = format!("{world} ranks within {} s", limit.as_secs_f64());
                    let got = format!("{}; missing: {}", come.len() + 1, missing.join(", "));
                    let reason = format!("ranks: expected {expected}, got {got}");
                    for (_, stream) in &mut come {
                        let _ = send(stream, Kind::Fail, 0, "", reason.as_bytes());
                    }
                    return Err(no_ranks(place, expected, got));
                }
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            let timed = |stream: &TcpStream| {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(Duration::from_secs(2)))
            };
            // A stranger, or one that has gone again.
            let hello = timed(&stream).and_then(|()| receive(&mut stream, MOST_AT_FIRST));
            let Ok((Kind::Hello, rank, name, bytes)) = hello else { continue };
            let of_other = String::from_utf8_lossy(&bytes).into_owned();
            if name != GREETING {
                continue;
            }
            let rank = rank as usize;
            if of_other != world.to_string() {
                let reason = format!("ranks: expected {world}, as rank 0 has it, got {of_other}");
                return refuse(&mut come, &mut stream, RankFailure { rank, reason });
            }
            if rank == 0 || rank >= world || come.iter().any(|(other, _)| *other == rank) {
                let reason = format!(
                    "expected a rank of its own from 1 to {}, got one that is there",
                    world - 1
                );
                return refuse(&mut come, &mut stream, RankFailure { rank, reason });
            }
            come.push((rank, stream));
        }
        come.sort_by_key(|(rank, _)| *rank);
        Ok(come)
    }

    /// Of another: calls rank 0 until it is there.
    fn reach(place: &Place, limit: Duration) -> Result<Vec<(usize, TcpStream)>, Error> {
        let until = Instant::now() + limit;
        loop {
            let addresses = place.address.to_socket_addrs();
            let connected = addresses.and_then(|mut all| {
                let none = || io::Error::new(io::ErrorKind::NotFound, "no such host");
                let address = all.next().ok_or_else(none)?;
                TcpStream::connect_timeout(&address, Duration::from_secs(2))
            });
            let greeted = connected.and_then(|mut stream| {
                let world = place.world.to_string();
                send(&mut stream, Kind::Hello, place.rank as u64, GREETING, world.as_bytes())?;
                Ok(stream)
            });
            match greeted {
                Ok(stream) => return Ok(vec![(0, stream)]),
                Err(e) if Instant::now() >= until => {
                    let expected = format!("rank 0 within {} s", limit.as_secs_f64());
                    return Err(no_ranks(place, expected, e.to_string()));
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// From 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Whether all are threads of this process.
    pub fn is_one_process(&self) -> bool {
        self.links.is_none()
    }

    /// How long a rank waits for another that should be there.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How the group has failed, if it has.
    pub fn failure(&self) -> Option<RankFailure> {
        self.shared.state().failure.clone()
    }

    /// # Errors
    /// The group has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Lets all ranks know that this one has failed. The first failure counts.
    pub fn fail(&self, reason: impl Into<String>) {
        self.fail_as(RankFailure { rank: self.rank, reason: reason.into() });
    }

    /// The same of another rank, which this one has missed or found wrong.
    pub(crate) fn fail_as(&self, failure: RankFailure) {
        self.end().fail_as(failure);
    }

    /// What stays with who gives it away.
    pub fn end(&self) -> GroupEnd {
        GroupEnd { rank: self.rank, shared: Arc::clone(&self.shared), links: self.links.clone() }
    }

    /// Tells all ranks these bytes, and gives back what each has told, its own included. A rank that must first end what it does is
    /// waited for as long as it is heard of.
    ///
    /// # Errors
    /// [`Error::Rank`]: a rank has failed or has ended, or exchanges something of another name.
    pub fn exchange(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.exchange_within(name, bytes, None)
    }

    /// Refuses where a rank says something else than rank 0.
    ///
    /// # Errors
    /// [`Error::Rank`], of the first that does; as [`exchange`](Self::exchange).
    pub fn check_same(&self, what: &str, own: &str) -> Result<(), Error> {
        let all = self.exchange(what, own.as_bytes())?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let [first, other] = [0, rank].map(|rank| String::from_utf8_lossy(&all[rank]).into_owned());
        let reason = format!("{what}: expected {first}, as rank 0 has it, got {other}");
        self.fail_as(RankFailure { rank, reason });
        self.check()
    }

    /// The same as [`exchange`](Self::exchange), within a limit where there is one.
    pub(crate) fn exchange_within(
        &self,
        name: &str,
        bytes: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let number = self.exchanges.fetch_add(1, Ordering::Relaxed);
        let part = Part { name: name.to_owned(), bytes: bytes.to_vec() };
        if let Some(links) = self.links.as_ref().filter(|_| self.rank != 0) {
            links.send_to_all(Kind::Part, number, name, bytes);
        }
        self.shared.put(number, self.rank, part);
        let parts = self.wait_for_parts(number, name, limit)?;
        if let Some(links) = self.links.as_ref().filter(|_| self.rank == 0) {
            for (rank, part) in parts.iter().enumerate() {
                let bytes = [&(rank as u64).to_le_bytes()[..], &part.bytes].concat();
                links.send_to_all(Kind::Gathered, number, &part.name, &bytes);
            }
        }
        let first = &parts[0].name;
        if let Some(rank) = parts.iter().position(|part| part.name != *first) {
            let reason = format!("expected {first}, as rank 0 has it, got {}", parts[rank].name);
            self.fail_as(RankFailure { rank, reason });
            self.check()?;
        }
        Ok(parts.into_iter().map(|part| part.bytes).collect())
    }

    fn wait_for_parts(
        &self,
        number: u64,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<Vec<Part>, Error> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.shared.state();
        loop {
            if let Some(failure) = state.failure.clone() {
                return Err(failure.into());
            }
            let ended = state.ended.clone();
            let (parts, taken) =
                state.exchanges.get_mut(&number).expect("this rank has put its part");
            let missing = parts.iter().position(Option::is_none);
            let Some(missing) = missing else {
                *taken += 1;
                let (all, is_over) =
                    (parts.iter().flatten().cloned().collect(), *taken == self.shared.takers);
                if is_over {
                    state.exchanges.remove(&number);
                }
                return Ok(all);
            };
            let reason = match (limit, until) {
                _ if ended[missing] => Some(format!("{name}: has ended before it")),
                (Some(limit), Some(until)) if Instant::now() >= until => {
                    Some(format!("{name}: not there within {} s", limit.as_secs_f64()))
                }
                _ => None,
            };
            if let Some(reason) = reason {
                drop(state);
                self.fail_as(RankFailure { rank: missing, reason });
                self.check()?;
                unreachable!("the group has failed");
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// What stays of a [`Group`] with whoever has given it away: whether it has failed, and a word to the others.
#[derive(Clone, Debug)]
pub struct GroupEnd {
    rank: usize,
    shared: Arc<Shared>,
    links: Option<Arc<Links>>,
}

impl GroupEnd {
    /// How the group has failed, if it has.
    pub fn failure(&self) -> Option<RankFailure> {
        self.shared.state().failure.clone()
    }

    /// Lets all ranks know that this one has failed. The first failure counts.
    pub fn fail(&self, reason: impl Into<String>) {
        self.fail_as(RankFailure { rank: self.rank, reason: reason.into() });
    }

    fn fail_as(&self, failure: RankFailure) {
        let (rank, reason) = (failure.rank as u64, failure.reason.clone());
        if self.shared.fail(failure)
            && let Some(links) = &self.links
        {
            links.send_to_all(Kind::Fail, rank, "", reason.as_bytes());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.shared.state().ended[self.rank] = true;
        self.shared.changed.notify_all();
        if let Some(links) = &self.links {
            // Who has told this rank 0 of a failure may not have been passed on yet: the others would hear of its end first.
            let failure = self.shared.state().failure.clone().filter(|_| self.rank == 0);
            if let Some(RankFailure { rank, reason }) = failure {
                links.send_to_all(Kind::Fail, rank as u64, "", reason.as_bytes());
            }
            links.send_to_all(Kind::Bye, 0, "", &[]);
            links.closed.store(true, Ordering::Relaxed);
            for (_, stream) in &links.to {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }
}

fn no_ranks(place: &Place, expected: String, got: String) -> Error {
    let (host, port) = &place.address;
    Error::NoRanks { what: format!("rank {} at {host}:{port}", place.rank), expected, got }
}

/// Takes what another rank says, until one of the two has ended.
fn listen(
    own: usize,
    other: usize,
    mut stream: TcpStream,
    shared: &Shared,
    links: &Links,
    limit: Duration,
) {
    let fail = |rank: usize, reason: String| {
        // Rank 0 tells the others.
        let text = reason.clone();
        if shared.fail(RankFailure { rank, reason }) && own == 0 {
            links.send_to_all(Kind::Fail, rank as u64, "", text.as_bytes());
        }
    };
    loop {
        match receive(&mut stream, MOST_BYTES) {
            Ok((Kind::Part, number, name, bytes)) if own == 0 => {
                shared.put(number, other, Part { name, bytes });
            }
            Ok((Kind::Gathered, number, name, bytes)) if own != 0 && bytes.len() >= 8 => {
                let (rank, bytes) = bytes.split_at(8);
                let rank = u64::from_le_bytes(rank.try_into().expect("eight")) as usize;
                if rank < shared.world && rank != own {
                    shared.put(number, rank, Part { name, bytes: bytes.to_vec() });
                }
            }
            Ok((Kind::Fail, rank, _, reason)) => {
                fail(rank as usize, String::from_utf8_lossy(&reason).into_owned());
            }
            Ok((Kind::Bye, ..)) => {
                let mut state = shared.state();
                state.ended[other] = true;
                // Rank 0 passes on what the others say: without it nobody hears anybody.
                if other == 0 {
                    state.ended.fill(true);
                }
                shared.changed.notify_all();
                return;
            }
            Ok((Kind::Beat, ..)) => {}
            Ok(_) => return fail(other, "has said what no rank says".into()),
            Err(_) if links.closed.load(Ordering::Relaxed) => return,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return fail(other, format!("has not been heard of for {} s", limit.as_secs_f64()));
            }
            Err(_) => return fail(other, "has ended, as its connection has".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(all: &[(&str, &str)]) -> Result<Option<Place>, Error> {
        Place::from_variables(|name| {
            all.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_say_where_a_rank_is() {
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "29500"),
        ];
        let expected = Place { rank: 5, world: 8, local: 1, address: ("a".into(), 29500) };
        assert_eq!(place(&torchrun).unwrap(), Some(expected.clone()));
        let with_store = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(place(&with_store).unwrap().unwrap().address.1, 29501);
        let srun = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[07-08,12],b"),
            ("SLURM_JOB_ID", "120003"),
        ];
        let expected = Place { rank: 3, world: 4, local: 1, address: ("gpu07".into(), 20003) };
        assert_eq!(place(&srun).unwrap(), Some(expected));
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("MASTER_PORT", "7"),
        ];
        let expected = Place { rank: 1, world: 2, local: 1, address: ("127.0.0.1".into(), 7) };
        assert_eq!(place(&mpirun).unwrap(), Some(expected));
        // A shell in a job, and one rank alone.
        assert_eq!(place(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]).unwrap(), None);
        assert_eq!(place(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        for (name, value, said) in [
            ("RANK", "8", "RANK: expected a rank below 8, as many as there are, got 8"),
            ("WORLD_SIZE", "many", "WORLD_SIZE: expected a number, got 'many'"),
            ("MASTER_PORT", "70000", "MASTER_PORT: expected 1 to 65534, got 70000"),
        ] {
            let all = torchrun.map(|(own, old)| (own, if own == name { value } else { old }));
            let error = place(&all).unwrap_err();
            assert_eq!(error.to_string(), said);
            assert!(error.is_unavailable());
        }
    }

    /// Ranks of one world over loopback, each of which does `work`.
    fn over_tcp<T: Send>(
        places: &[Place],
        seconds: f64,
        work: impl Fn(Result<Group, Error>) -> T + Sync,
    ) -> Vec<T> {
        let limit = Duration::from_secs_f64(seconds);
        thread::scope(|scope| {
            let work = &work;
            let all: Vec<_> = places
                .iter()
                .map(|place| scope.spawn(move || work(Group::connect(place, limit))))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    /// Of a port that is free now.
    fn places(world: usize) -> Vec<Place> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let of = |rank| Place { rank, world, local: rank, address: ("127.0.0.1".into(), port) };
        (0..world).map(of).collect()
    }

    fn tell(group: &Group) -> Vec<String> {
        let told = (0..3).map(|n| {
            let own = format!("{} in {n}", group.rank());
            let all = group.exchange("word", own.as_bytes()).unwrap();
            all.into_iter()
                .map(|bytes| String::from_utf8(bytes).unwrap())
                .collect::<Vec<_>>()
                .join(", ")
        });
        told.collect()
    }

    #[test]
    fn all_ranks_hear_what_all_have_told() {
        let expected =
            ["0 in 0, 1 in 0, 2 in 0", "0 in 1, 1 in 1, 2 in 1", "0 in 2, 1 in 2, 2 in 2"];
        for told in over_tcp(&places(3), 10.0, |group| tell(&group.unwrap())) {
            assert_eq!(told, expected);
        }
        let groups = Group::of_threads(3, Duration::from_secs(10));
        thread::scope(|scope| {
            let all: Vec<_> = groups.iter().map(|group| scope.spawn(|| tell(group))).collect();
            all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), expected));
        });
    }

    #[test]
    fn who_is_missing_or_counts_otherwise_is_named() {
        let all = places(3);
        let said = over_tcp(&all[..2], 0.6, |group| {
            group.and_then(|group| group.exchange("word", b"")).unwrap_err()
        });
        let first = said[0].to_string();
        assert!(first.ends_with("expected 3 ranks within 0.6 s, got 2; missing: 2"), "{first}");
        assert!(said[0].is_unavailable());
        let mut all = places(2);
        all[1].world = 3;
        let said = over_tcp(&all, 5.0, |group| {
            group.and_then(|group| group.exchange("word", b"")).unwrap_err().to_string()
        });
        assert_eq!(said, ["rank 1: ranks: expected 2, as rank 0 has it, got 3"; 2]);
    }

    #[test]
    fn a_port_in_use_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ("127.0.0.1".to_owned(), taken.local_addr().unwrap().port());
        let place = Place { rank: 0, world: 2, local: 0, address };
        let error = Group::connect(&place, Duration::from_secs(1)).unwrap_err();
        assert!(
            error.to_string().contains("expected a port that is free on this host (MASTER_PORT)"),
            "{error}"
        );
        assert!(error.is_unavailable());
    }

    #[test]
    fn a_rank_that_fails_or_ends_wakes_all_others() {
        let said = over_tcp(&places(3), 10.0, |group| {
            let group = group.unwrap();
            if group.rank() == 2 {
                group.fail("a tensor is wrong");
            }
            group.exchange("word", b"").unwrap_err().to_string()
        });
        assert_eq!(said, ["rank 2: a tensor is wrong"; 3]);
        let said = over_tcp(&places(3), 10.0, |group| {
            let group = group.unwrap();
            if group.rank() == 1 {
                return None;
            }
            Some(group.exchange("word", b"").unwrap_err().to_string())
        });
        let ended = Some("rank 1: word: has ended before it".to_owned());
        assert_eq!(said, [ended.clone(), None, ended]);
    }

    #[test]
    fn a_rank_that_does_something_else_is_named() {
        let groups = Group::of_threads(2, Duration::from_secs(10));
        let said = thread::scope(|scope| {
            fn name(rank: usize) -> &'static str {
                if rank == 0 { "word" } else { "number" }
            }
            fn tell(group: &Group) -> String {
                group.exchange(name(group.rank()), b"").unwrap_err().to_string()
            }
            let all: Vec<_> = groups.iter().map(|group| scope.spawn(|| tell(group))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(said[0], said[1]);
        assert_eq!(said[0], "rank 1: expected word, as rank 0 has it, got number");
    }

    /// In the same words on all ranks, whichever is the first to see it.
    #[test]
    fn who_says_something_else_is_named() {
        let said = thread::scope(|scope| {
            let groups = Group::of_threads(3, Duration::from_secs(9));
            let tell = |group: Group| {
                let own = if group.rank() == 2 { "no" } else { "yes" };
                group.check_same("asked", "it").unwrap();
                group.check_same("wanted", own).unwrap_err().to_string()
            };
            let all: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || tell(group))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(said, ["rank 2: wanted: expected yes, as rank 0 has it, got no"; 3]);
    }

    #[test]
    fn one_that_is_not_heard_of_is_given_up() {
        let all = places(2);
        let silent = all[1].clone();
        let stranger = thread::spawn(move || {
            // It greets, and says nothing any more.
            let stream = Group::reach(&silent, Duration::from_secs(5)).unwrap();
            thread::sleep(Duration::from_secs(3));
            drop(stream);
        });
        let group = Group::connect(&all[0], Duration::from_secs_f64(0.5)).unwrap();
        let error = group.exchange("word", b"").unwrap_err();
        assert_eq!(error.to_string(), "rank 1: has not been heard of for 0.5 s");
        stranger.join().unwrap();
    }
}
