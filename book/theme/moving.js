// Figures that move: runs of the emulator, written by `lab dev trace`, which a reader steps through.
//
// A figure stands in its page as a still. What is drawn here, or marked within the still, says the same one step at a
// time. Keys: left and right; with the focus also Home and End, and the space bar plays.
(() => {
    'use strict';

    const LANES = 32, SECTOR = 32, BANKS = 32, WORD = 4;
    const PACE = 900; // milliseconds a step
    const SIGNS = {
        first: 'M2 2h2v12h-2zM14 2v12l-9-6z',
        back: 'M12 2v12l-9-6z',
        play: 'M3 1v14l11-7z',
        pause: 'M3 2h4v12h-4zM9 2h4v12h-4z',
        next: 'M4 2v12l9-6z',
        last: 'M12 2h2v12h-2zM2 2v12l9-6z',
    };
    const SVG = 'http://www.w3.org/2000/svg';

    function element(name, attributes = {}, ...children) {
        const made = document.createElement(name);
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        made.append(...children);
        return made;
    }

    function drawing(width, height, ...layers) {
        const made = document.createElementNS(SVG, 'svg');
        made.setAttribute('viewBox', `0 0 ${width} ${height}`);
        made.setAttribute('aria-hidden', 'true');
        for (const [name, attributes] of layers) {
            const layer = document.createElementNS(SVG, name);
            for (const [key, value] of Object.entries(attributes)) layer.setAttribute(key, value);
            made.append(layer);
        }
        return made;
    }

    // Where a listing leaves out lines of its file, a row says so.
    function markGaps(listing) {
        let before = null;
        for (const line of [...listing.querySelectorAll('.line')]) {
            const number = Number(line.querySelector('.number').textContent);
            if (before !== null && number > before + 1) {
                line.before(element('div', { class: 'gap' }, '⋮'));
            }
            before = number;
        }
    }

    const isHeld = event => event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    const stages = [];

    // Where no figure has the focus, left and right step the one in the middle of the screen, else the first that is in sight: they
    // would turn the book's page.
    document.addEventListener('keydown', event => {
        const isArrow = event.key === 'ArrowLeft' || event.key === 'ArrowRight';
        if (!isArrow || isHeld(event) || event.target.closest('.stage, input, textarea, select')) return;
        const between = (from, to) => stages.find(({ stage }) => {
            const { top, bottom } = stage.getBoundingClientRect();
            return top < to && bottom > from;
        });
        const shown = between(innerHeight / 2, innerHeight / 2) ?? between(0, innerHeight);
        if (!shown) return;
        event.stopPropagation();
        event.preventDefault();
        shown.keys[event.key]();
    }, true);

    const count = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;
    const colour = lane => `hsl(${200 + lane * 4.5} 68% 52%)`;
    const box = (x, y, width = 1) => `M${x} ${y}h${width}v1h${-width}z`;

    // ---- lanes, sectors and banks -----------------------------------------------------------------

    // One array: its elements as cells, those of this access in the colours of their lanes.
    class Memory {
        constructor(array) {
            Object.assign(this, array);
            this.done = new Set();
            this.svg = drawing(this.pitch, this.rows,
                ['rect', { class: 'ground', width: this.pitch, height: this.rows }],
                ['path', { class: 'done' }], ['path', { class: 'fetched' }], ['g', {}]);
            this.note = element('span', { class: 'note' });
            const wide = this.pitch > 3 * BANKS ? ' broad' : '';
            const what = this.shared ? `shared, ${this.pitch} a row` : 'device memory';
            this.panel = element('div', { class: `panel${wide}` },
                element('div', { class: 'name' }, element('b', {}, this.name), ` ${what}`), this.svg, this.note);
        }

        at(word) {
            return [word % this.pitch, Math.floor(word / this.pitch)];
        }

        show(step) {
            const [, done, fetched, lanes] = this.svg.children;
            done.setAttribute('d', [...this.done].map(word => box(...this.at(word))).join(''));
            lanes.replaceChildren();
            let moved = '';
            if (step && step.lanes) {
                const sectors = new Set();
                step.lanes.forEach((offset, lane) => {
                    if (offset === null) return;
                    for (let s = Math.floor(offset / SECTOR); s * SECTOR < offset + step.bytes; s++) sectors.add(s);
                    const cell = document.createElementNS(SVG, 'path');
                    cell.setAttribute('d', box(...this.at(offset / WORD), step.bytes / WORD));
                    cell.setAttribute('fill', colour(lane));
                    lanes.append(cell);
                });
                if (!this.shared) {
                    moved = [...sectors].map(s => box(...this.at(s * SECTOR / WORD), SECTOR / WORD)).join('');
                }
            }
            fetched.setAttribute('d', moved);
            this.note.textContent = !step || !step.lanes ? '' : this.shared
                ? count(step.cost, 'wavefront') : count(step.cost, 'sector');
            this.panel.classList.toggle('busy', Boolean(step));
        }

        // What is in it after a step.
        keep(step) {
            for (const offset of step.lanes ?? []) {
                for (let n = 0; offset !== null && n < step.bytes; n += WORD) this.done.add((offset + n) / WORD);
            }
            for (const [start, end] of step.written ?? []) {
                for (let at = start; at < end; at += WORD) this.done.add(at / WORD);
            }
        }
    }

    // The words that an access asks of each bank, one a wavefront.
    class Banks {
        constructor() {
            this.svg = drawing(BANKS, BANKS,
                ['rect', { class: 'ground', width: BANKS, height: BANKS }], ['g', {}]);
            this.note = element('span', { class: 'note' });
            this.panel = element('div', { class: 'panel' },
                element('div', { class: 'name' }, element('b', {}, 'banks'), ' a row is a wavefront'), this.svg, this.note);
        }

        // The lanes that are served at once: those of 128 bytes, or twice as many where neighbours, or lanes two apart, ask
        // for the same (the emulator's counters say more).
        passes({ lanes, bytes }) {
            const few = bytes > 8 ? 8 : bytes > 4 ? 16 : LANES, all = [];
            for (let first = 0; first < LANES; first += Math.min(2 * few, LANES)) {
                const group = lanes.slice(first, first + 2 * few).map((offset, n) => [offset, first + n]);
                const twins = [1, 2].some(apart => group.every(([offset], n) => {
                    const [other] = group[n ^ apart];
                    return offset === null || other === null || offset === other;
                }));
                const step = twins ? group.length : few;
                for (let n = 0; n < group.length; n += step) all.push(group.slice(n, n + step));
            }
            return all;
        }

        show(step) {
            const cells = this.svg.lastChild;
            cells.replaceChildren();
            const used = new Set();
            let row = 0;
            for (const pass of step ? this.passes(step) : []) {
                const asked = Array.from({ length: BANKS }, () => []);
                for (const [offset, lane] of pass) {
                    for (let n = 0; offset !== null && n < step.bytes; n += WORD) {
                        const word = Math.floor((offset + n) / WORD), bank = asked[word % BANKS];
                        if (bank.includes(word)) continue;
                        const cell = document.createElementNS(SVG, 'path');
                        cell.setAttribute('d', box(word % BANKS, row + bank.length));
                        cell.setAttribute('fill', colour(lane));
                        cells.append(cell);
                        bank.push(word);
                        used.add(word % BANKS);
                    }
                }
                row += Math.max(...asked.map(words => words.length));
            }
            this.note.textContent = step ? `${used.size} of ${BANKS} banks asked` : '';
            this.panel.classList.toggle('busy', Boolean(step));
        }
    }

    function lanes(figure) {
        const { runs } = JSON.parse(figure.querySelector('script').textContent);
        const units = ['sectors', 'wavefronts'].filter(unit => runs.some(run => run.steps.some(step => step.unit === unit)));
        const spent = (run, unit, last) => run.steps.slice(0, last + 1)
            .filter(step => step.unit === unit)
            .reduce((sum, step) => [sum[0] + step.cost, sum[1] + step.ideal], [0, 0]);
        const most = Math.max(...runs.flatMap(run => units.map(unit => spent(run, unit, run.steps.length)[0])));
        const place = element('div', { class: 'scene' });
        let shown, memories, banks, lines, strip, meters;

        function build(run) {
            shown = run;
            const code = element('div', { class: 'listing', role: 'group', 'aria-label': `Source of ${run.name}` });
            lines = run.code.map(([number, text]) => element('div', { class: 'line' },
                element('span', { class: 'number' }, String(number)), element('span', { class: 'text' }, text)));
            code.append(...lines);
            markGaps(code);
            strip = element('div', { class: 'lanes', 'aria-hidden': 'true' });
            for (let lane = 0; lane < LANES; lane++) strip.append(element('i', {}, String(lane)));
            banks = run.arrays.some(array => array.shared) ? new Banks() : null;
            memories = run.arrays.map(array => new Memory(array));
            const panels = element('div', { class: 'panels' });
            memories.forEach(memory => panels.append(memory.panel, ...memory.shared ? [banks.panel] : []));
            meters = units.map(unit => {
                const bar = element('div', { class: 'bar' }, element('i'), element('i', { class: 'over' }));
                const text = element('span', { class: 'sum' });
                return { unit, bar, text, row: element('div', { class: 'meter' }, element('span', {}, unit), bar, text) };
            });
            place.replaceChildren(code, element('div', { class: 'name' }, element('b', {}, 'lanes'), ' of warp 0'), strip,
                panels, element('div', { class: 'meters' }, ...meters.map(meter => meter.row)));
        }

        return {
            place,
            runs: runs.map(run => ({ name: run.name, steps: run.steps.length })),
            show(which, index) {
                const run = runs[which], step = run.steps[index];
                if (shown !== run) build(run);
                lines.forEach((line, n) => line.classList.toggle('now', run.code[n][0] === step.line));
                memories.forEach((memory, n) => {
                    memory.done.clear();
                    run.steps.slice(0, index).forEach(before => {
                        if (before.array === n || before.written && memory.shared) memory.keep(before);
                    });
                    if (step.written && memory.shared) memory.keep(step);
                    memory.show(step.array === n ? step : null);
                });
                if (banks) banks.show(step.unit === 'wavefronts' ? step : null);
                [...strip.children].forEach((lane, n) => {
                    lane.style.background = step.lanes && step.lanes[n] !== null ? colour(n) : '';
                });
                for (const { unit, bar, text } of meters) {
                    const [cost, ideal] = spent(run, unit, index);
                    bar.firstChild.style.width = `${100 * Math.min(cost, ideal) / most}%`;
                    bar.lastChild.style.width = `${100 * (cost - Math.min(cost, ideal)) / most}%`;
                    text.textContent = cost ? `${cost} so far; the minimum is ${ideal}` : 'none so far';
                }
                if (!step.lanes) {
                    return `Line ${step.line}: a barrier. The warp waits until all warps of the block have stored their part of the tile.`;
                }
                const there = step.lanes.filter(offset => offset !== null);
                const steps = new Set(there.slice(1).map((offset, n) => Math.abs(offset - there[n])));
                const apart = steps.size === 1 ? `, ${[...steps][0]} bytes apart` : '';
                const verb = step.does.endsWith('store') ? 'store' : 'load';
                const cost = count(step.cost, step.unit.slice(0, -1));
                return `Line ${step.line}: ${count(there.length, 'lane')} ${verb} ${step.bytes} bytes each`
                    + ` ${verb === 'store' ? 'to' : 'from'} ${run.arrays[step.array].name}${apart}. `
                    + (step.cost > step.ideal ? `${cost}; the minimum is ${step.ideal}.` : `${cost}, as few as can be.`);
            },
        };
    }

    // ---- the phases of mbarriers -------------------------------------------------------------------

    function phases(figure) {
        const { name: run, code, file, roles, cards, barriers, made, steps } =
            JSON.parse(figure.querySelector('script').textContent);
        const listing = element('div', { class: 'listing', role: 'group', 'aria-label': `Source: ${file}` });
        const lines = code.map(([number, text]) => element('div', { class: 'line' },
            element('span', { class: 'number' }, String(number)), element('span', { class: 'text' }, text)));
        listing.append(...lines);
        markGaps(listing);
        const actors = Object.fromEntries(roles.map(who => [who, element('span', { class: 'does' })]));
        const crew = element('div', { class: 'crew' }, ...roles.map(who =>
            element('div', { class: 'card' }, element('b', {}, who), actors[who])));
        const counts = barriers.map((_, n) => made[n][4] > 0 || steps.some(step => step.barrier === n && step.now[4] > 0));
        const drawn = barriers.map(([name], n) => {
            const parts = {
                phase: element('span'), pips: element('span', { class: 'pips', role: 'img' }), bar: element('div', { class: 'bar' }, element('i')),
                bytes: element('span'),
            };
            parts.card = element('div', { class: 'barrier' }, element('b', {}, name), parts.phase, parts.pips,
                ...counts[n] ? [parts.bar, parts.bytes] : []);
            return parts;
        });
        const holds = cards.map(() => element('span'));
        const ring = element('div', { class: 'ring' }, ...cards.map((card, n) =>
            element('div', { class: 'card' }, element('div', { class: 'name' }, element('b', {}, card.name), holds[n]),
                drawn[card.full].card, ...card.empty === null ? [] : [drawn[card.empty].card])));
        const place = element('div', { class: 'scene' }, listing, crew, ring);

        // What a phase of a place's barrier is about: tile 4.
        const thing = (card, phase) => card.places === 1 ? card.what : `${card.what} ${phase * card.places + card.first}`;
        const act = ({ does, barrier, n, now, times }) => {
            const [name, at, full] = barriers[barrier], card = cards[at];
            if (does === 'waits') return `waits for ${name}, parity ${n % 2}`;
            if (does === 'passes') return full ? `has ${thing(card, n)}, in ${card.name}` : `may fill ${card.name}`;
            if (!full) return times ? `${count(times, 'warp')} of it left ${card.name}` : `has left ${card.name}`;
            if (card.empty === null && card.places > 1) return `expects ${n} bytes in ${card.name}`;
            return n ? `has asked for ${thing(card, now[0])}, ${n} bytes, for ${card.name}` : `has arrived at ${name}`;
        };

        return {
            place,
            runs: [{ name: run, steps: steps.length }],
            show(which, index) {
                const step = steps[index];
                lines.forEach((line, n) => line.classList.toggle('now', code[n][0] === step.line));
                const states = [...made];
                steps.slice(0, index + 1).forEach(one => { states[one.barrier] = one.now; });
                states.forEach(([phase, arrived, count, landed, expected], n) => {
                    const { card, phase: says, pips, bar, bytes } = drawn[n];
                    card.classList.toggle('busy', n === step.barrier);
                    says.textContent = `phase ${phase}, parity ${phase % 2}`;
                    pips.textContent = `${'●'.repeat(arrived)}${'○'.repeat(count - arrived)}`;
                    pips.setAttribute('aria-label', `${arrived} of ${count} arrivals`);
                    bar.firstChild.style.width = expected ? `${100 * landed / expected}%` : '0';
                    bytes.textContent = expected ? `${landed} of ${expected} bytes` : 'no bytes expected';
                });
                cards.forEach((card, n) => {
                    if (card.empty === null) return;
                    const [[filled, asked], [left]] = [states[card.full], states[card.empty]];
                    holds[n].textContent = filled - left ? ` has ${thing(card, filled - 1)}`
                        : asked ? ` waits for ${thing(card, filled)}` : ' is free';
                });
                for (const who of roles) {
                    const own = steps.slice(0, index + 1).filter(one => one.who === who && one.does !== 'lands').pop();
                    actors[who].textContent = own ? act(own) : 'has not begun';
                    actors[who].parentElement.classList.toggle('busy', who === step.who);
                }
                const before = index ? steps.slice(0, index).filter(one => one.barrier === step.barrier).pop() : null;
                const turned = step.now[0] > (before?.now ?? made[step.barrier])[0];
                const over = turned ? ` That completes phase ${step.now[0] - 1}: the parity is ${step.now[0] % 2} now.` : '';
                const [name, at] = barriers[step.barrier];
                if (step.does === 'lands') {
                    return (step.who === 'TMA' ? `${step.n} bytes have come: ${name} counts them.`
                        : `${step.n} bytes have come from ${step.who} into ${cards[at].name}.`) + over;
                }
                const who = step.who[0].toUpperCase() + step.who.slice(1);
                return `${who}, line ${step.line}: ${act(step)}.${over}`;
            },
        };
    }

    // ---- a still whose parts are marked, one step after the other -----------------------------------

    function marked(figure) {
        const place = figure.querySelector('.still');
        place.classList.replace('still', 'scene');
        const runs = [...place.querySelectorAll('.run')].map(run => {
            const parts = [...run.querySelectorAll('[data-step]')];
            const steps = 1 + Math.max(...parts.map(part => Number(part.dataset.step)));
            const lines = [...run.querySelectorAll('[data-line]')];
            const spans = [...run.querySelectorAll('[data-from]')];
            return { name: run.dataset.name, steps, run, parts, lines, spans };
        });
        return {
            place,
            runs,
            show(which, index) {
                runs.forEach((other, n) => { other.run.hidden = n !== which; });
                const { parts, lines, spans } = runs[which];
                const now = parts.filter(part => Number(part.dataset.step) === index);
                for (const part of parts) {
                    part.classList.toggle('now', now.includes(part));
                    part.classList.toggle('ahead', Number(part.dataset.step) > index);
                }
                for (const { dataset, classList } of spans) {
                    classList.toggle('off', index < Number(dataset.from) || index > Number(dataset.to));
                }
                const at = now.flatMap(part => (part.dataset.at ?? '').split(' '));
                lines.forEach(line => line.classList.toggle('now', at.includes(line.dataset.line)));
                return now.map(part => part.dataset.says).filter(Boolean).join(' ');
            },
        };
    }

    // ---- what all have in common ------------------------------------------------------------------

    function play(figure) {
        const scene = ({ lanes, phases }[figure.dataset.scene] ?? marked)(figure);
        let which = 0, index = 0, timer = null;

        const button = (label, sign, act) => {
            const made = element('button', { type: 'button', 'aria-label': label }, sign);
            made.addEventListener('click', act);
            return made;
        };
        const sign = name => drawing(16, 16, ['path', { d: SIGNS[name] }]);
        const last = () => scene.runs[which].steps - 1;
        const go = to => {
            index = Math.max(0, Math.min(last(), to));
            draw();
            follow();
        };
        const stop = () => {
            clearInterval(timer);
            timer = null;
            draw();
        };
        const toggle = () => {
            if (timer) return stop();
            if (index === last()) index = 0;
            timer = setInterval(() => index < last() ? go(index + 1) : stop(), PACE);
            draw();
        };
        const step = to => {
            if (timer) stop();
            go(to);
        };

        const first = button('First step', sign('first'), () => step(0));
        const back = button('Step back', sign('back'), () => step(index - 1));
        const playing = button('Play', sign('play'), toggle);
        const next = button('Step forward', sign('next'), () => step(index + 1));
        const end = button('Last step', sign('last'), () => step(last()));
        const slider = element('input', { type: 'range', min: 0, step: 1, 'aria-label': 'Step' });
        slider.addEventListener('input', () => step(Number(slider.value)));
        const where = element('span', { class: 'where' });
        const says = element('p', { class: 'says', role: 'status' });
        const choices = scene.runs.length < 2 ? [] : scene.runs.map((run, n) => {
            return button(`Show ${run.name}`, run.name, () => {
                which = n;
                step(0);
            });
        });
        const bar = element('div', { class: 'controls' }, first, back, playing, next, end, slider, where);
        const runs = element('div', { class: 'versions', role: 'group', 'aria-label': 'Version' }, ...choices);
        // Stays on the screen while the rest of a tall figure scrolls.
        const head = element('div', { class: 'head' }, bar, says);
        const stage = element('div', {
            class: 'stage', role: 'group', tabindex: 0,
            'aria-label': 'A run, step by step. Arrow keys step, Home and End go to its ends, the space bar plays.',
        }, ...choices.length ? [runs] : [], head, scene.place);

        // The listing scrolls to its current line; the page, where nothing that is current is on the screen.
        function follow() {
            for (const listing of scene.place.querySelectorAll('.listing')) {
                const lines = [...listing.querySelectorAll('.line.now')];
                if (!lines.length || listing.scrollHeight <= listing.clientHeight) continue;
                const top = listing.getBoundingClientRect().top - listing.scrollTop;
                const [from, to] = [lines[0], lines.at(-1)].map(line => line.getBoundingClientRect());
                const middle = (from.top + Math.min(to.bottom, from.top + listing.clientHeight)) / 2 - top;
                listing.scrollTop = middle - listing.clientHeight / 2;
            }
            const shown = name => [...scene.place.querySelectorAll(name)].filter(part => part.checkVisibility());
            const [lines, others] = [shown('.line.now'), shown('.now, .busy')];
            const now = lines.length ? lines : others;
            const covered = head.getBoundingClientRect().bottom;
            const isSeen = part => {
                const { top, bottom } = part.getBoundingClientRect();
                return top >= covered - 1 && bottom <= innerHeight + 1;
            };
            if (now.length && !now.some(isSeen)) now[0].scrollIntoView({ block: 'center' });
        }

        function draw() {
            const text = scene.show(which, index);
            says.setAttribute('aria-live', timer ? 'off' : 'polite');
            says.textContent = text;
            slider.max = last();
            slider.value = index;
            slider.setAttribute('aria-valuetext', `Step ${index + 1} of ${last() + 1}`);
            where.textContent = `${index + 1} / ${last() + 1}`;
            first.disabled = back.disabled = index === 0;
            next.disabled = end.disabled = index === last();
            playing.setAttribute('aria-label', timer ? 'Pause' : 'Play');
            playing.replaceChildren(sign(timer ? 'pause' : 'play'));
            choices.forEach((choice, n) => choice.setAttribute('aria-pressed', String(n === which)));
        }

        const keys = {
            ArrowLeft: () => step(index - 1),
            ArrowRight: () => step(index + 1),
            Home: () => step(0),
            End: () => step(last()),
            ' ': toggle,
        };
        stages.push({ stage, keys });
        stage.addEventListener('keydown', event => {
            if (isHeld(event) || !(event.key in keys)) return;
            // The book turns its pages by the same keys.
            event.stopPropagation();
            // A button that has the focus is pressed by the space bar.
            if (event.key === ' ' && event.target.localName === 'button') return;
            event.preventDefault();
            keys[event.key]();
        });
        figure.prepend(stage);
        figure.classList.add('live');
        draw();
    }

    document.querySelectorAll('figure.moving .listing').forEach(markGaps);
    document.querySelectorAll('figure.moving').forEach(play);
})();
