// The plots of the tales (tales.c). No beginning is a prefix of another; earlier plots are likelier.
#include "data.h"

const char *const tale_plots[] = {

    // A notice, and its answer.
    "Lost near the {place}: {trait.a} {colour:c} {animal:x} in {look.a} {clothes:o}. It likes "
    "{dish:d} and {fruit.s}.\nFound {spot}: {c.a} {x} in {clothes.a}. It has had all my {d} and "
    "{2 to 9} {trinket.s}. Come soon!\n{name} {surname}",

    // A magic word, to be said again.
    "Say <{syllable:a}-{syllable:b}-{syllable:c}> and {colour.a} {animal:x} will bring you "
    "{dish}. {trait.A} {kin:k} told {name:h} {surname} so. {h} {moved} to the {place}, {said} "
    "<{a}-{b}-{c}!> {softly}, and there was the {x} with {2 to 9} {look} {fruit.s}.",

    // Good night.
    "Good night, {trait} {animal:a}. Good night, {look} {toy:b}. Good night, {colour} "
    "{clothes:c}. <Good night,> {said} {name:h} {surname} {softly}, and the {a}, the {b} and the "
    "{c} {moved} off to dream of {dish} and {trait} {animal.s}.",

    // Gifts: who sent which?
    "Gifts came to {trait} {name:h} {surname}: {look.a} {treasure:a} from {name:f}, {colour.a} "
    "{toy:b} from {name:g}, and {dish:c} from the {trait} {trade:t}. [w:Next|Then] {h} wrote: "
    "<Thank you for the [w?{a}|{b}], {trait} [w?{f}|{g}]! It is {spot}.>",

    // A circus.
    "Come to the circus of {name:h} {surname}! {trait.A} {animal:a} will {skill:i}, {trait.a} "
    "{animal:b} will {skill:j}, and {2 to 9} {colour} {animal:c.s} will play the {instrument}. "
    "[w:Last {day}|In {month}] the {a} {i.1} so {softly} that {trait} {name} forgot all about the "
    "{dish}.",

    // Somebody is cold.
    "Under {look.a} {tree} sat {trait} {name:h} {surname}, knitting {colour:c.a} {clothes:o}. "
    "<Who is it for?> {said} {trait.a} {animal:x}. <For a cold {body:b},> {said} {h} {softly}. "
    "<My {b} is cold!> So the {x} {moved} off in {c.a} {o}. {aside}",

    // A sum: some of them are given away.
    "At the market {trait} {name:h} {surname} got {2 to 9:n} {fruit:a.s} and {2 to 9:m} {colour} "
    "{fruit:b.s}. {animal:x.A} there was too {glum} to {skill}, so {h} gave it {1 to n-1:k} "
    "{a#k}. {h.His} {trait} {kin:g} {said}, <{n-k.C} {a#n-k} and {m} {b.s} make {n-k+m}.> {ending}",

    // What was packed, and what is left?
    "Into {look.a} {container:v} {name:h} {surname} packed {look.a} {treasure:a}, {2 to 9:n} "
    "{fruit:b.s}, {colour.a} {clothes:c} and {toy:d.a}. {trait.A} {animal:x} {moved} by and took "
    "[w:the {b.s}|everything to wear|all the toys]. So {h} came to the {place} with the {a}, "
    "[w?the {c} and the {d}|the {b.s} and the {d}|the {b.s} and the {c}]. {aside}",

    // Who has it now, and what is tomorrow?
    "On {day:d} {trait} {name:h} {surname} found {look:l.a} {treasure:o} {spot} and gave it to "
    "{name:f}. {f} [w:lent it to {name:g}, who hid it {spot:s}|hid it {spot:s}|swapped it with "
    "{name:g} for {colour.a} {toy:y}]. On {d.1} {trait.a} {kin:k} {said}, <Where is that {o}?> "
    "[w?<It is {s},> {said} {g}.|<It is {s},> {said} {f}.|<I have it,> {said} {g}, <and {f} has "
    "my {y}.>] {aside}",

    // Up in the sky.
    "Up in the sky {sky:a} was {glum}. <Nobody looks at me,> it {said}. But {trait} {name:h} "
    "{surname} {moved} to the {place}, looked up from {h.his} {colour} {treasure} and {said} "
    "{softly}, <Good [night|evening|morning], {a.1}!> And it was {glad}. {ending}",

    // A call, and who calls.
    "<Listen!> {said} {trait} {name:h} {surname}. Outside something went <{caller:c.1}>. <A "
    "ghost?> {said} {name:f}. They took {look.a} {treasure:o} and {moved} to the door. It was "
    "{c.a}, {glum} because it wanted {dish:d} and {fruit:a.s}. They gave it the {d} and {2 to 9} "
    "{a.s}. {together}",

    // Question, wrong guess, answer.
    "Riddle time! <{riddle:r}> {said} {trait} {name:h} {surname}. {h.His} {kin:g} ate {2 to 9} "
    "{fruit.s} and thought {softly}. <Is it {trait.a} {animal}?> <No!> <Is it {look.a} "
    "{treasure}?> <No!> {said} {h}. <It is {r.1}.> {aside}",

    // The ruler laughs.
    "Long ago {trait.a} {ruler:r} of {syllable.C}-{syllable}-{syllable} could not laugh. "
    "{trait.A} {trade} [sang of {animal.s} and {fruit.s}|told a joke about {dish}], but the {r} "
    "was {glum}. Then {trait} {name:h} {surname} [w:fell into the {dish:d} with {2 to 9} {look} "
    "{fruit.s}|came in with {look.a} {clothes:e} on {h.his} {body}]. <Look at that [w?{d}|{e}]!> "
    "laughed the {r} and gave {h.him} {look.a} {colour} {treasure}.",

    // Lost and found: who has it?
    "Once upon a time {trait.a} {animal:x} named {name:h} {surname} lost {h.his} {colour:c} "
    "{clothes:o}. {h.He} looked {spot} and {spot}, but found only {look.a} {treasure}. {trait.A} "
    "{animal:z} turned {colour}. [w:<It is on your {body}!>|<I was cold, so I took it,>|<You left "
    "it {spot:s},>] it {said}. [w?And so it was.|It gave back the {c} {o}.|And there it was, "
    "{s}.] {ending}",

    // Hide-and-seek: who is where, and who gives it away?
    "Hide-and-seek in {syllable.C}-{syllable}-{syllable} is hard for {name:f}, who always "
    "sneezes, and for {trait} {name:g}, who giggles. {f} hid {spot:s} and {g} hid {spot:t}, and "
    "{name:h} {surname} found {look.a} {toy} {spot}. [w:<Achoo!>|<Hee hee!>] {said} somebody. "
    "<[w?{f}|{g}], you are [w?{s}|{t}],> {said} {h}.",

    // Dressed for the weather.
    "Before breakfast it was {weather:w}. <Do not go to {syllable.C}-{syllable}-{syllable} "
    "without {w.2},> said {name:h}'s {trait} {kin:g}. [v:But {h} forgot|So {h} put on {w.2}], and "
    "{moved} out for {look.a} {treasure} and some {colour} {flower.s}. [v?{h.He} came back "
    "{w.3}.|{h.He} played {game} in the {w.1} until {time}.]",

    // Opposites that change places.
    "Not far from {syllable.C}-{syllable}-{syllable} lived {opposite:a.a} {animal:x} and {a.1a} "
    "{animal:y}. <I want to be {a.1},> {said} the {x}. <And I {a},> {said} the {y}. {trait.A} "
    "{ruler:r} waved {look.a} {treasure} and {said} <{syllable}-{syllable}-{syllable}!> {softly}. "
    "Now the {x} was {a.1} and the {y} was {a}. [They had {dish} with {fruit.s} and were "
    "{glad}.|<I am too {a.1},> {said} the {x}, and became {a} again.]",

    // Learning: to do, did, doing.
    "Every {day} {trait} {name:h} {surname} tried to {skill:k} and fell over {look.a} {toy}. "
    "{trait.A} {animal:z} that {k.1} {softly} said, <There is nothing to {k.2}. [w:Close your "
    "eyes|Wear {clothes:c.a}|Think of {dish:d}].> So {h} [w?closed {h.his} eyes|wore "
    "{c.a}|thought of {d}], and {k.1}! Now {h} teaches {k.2} to {2 to 9} {trait} {animal.s}.",

    // Counting to fall asleep.
    "Late one {day} {trait} {name:h} {surname} counted {2 to 9:n} {colour} {animal:x.s} and {2 to "
    "9:m} {trait} {animal:y.s}. <That makes {n+m},> {h.he} {said}, still awake. {trait.A} {kin:k} "
    "brought {dish} with {fruit.s} and {said} {softly}, <Good night.> Then {h} slept and dreamt "
    "of the {n} {x.s}, who {moved} to the {place}.",

    // Who sleeps where.
    "Night fell on the {place} and {sky} {moved} by. The {dweller:a} {moved} to its {a.1}, the "
    "{dweller:b} to its {b.1}, the {dweller:c} to its {c.1}. But {name:h} {surname}, {trait.a} "
    "{colour} {toy} from {syllable.C}-{syllable}-{syllable}, had no bed. <[w:Take my {a.1}|Come "
    "into my {b.1}|Sleep in my {c.1}],> {said} the [w?{a}|{b}|{c}]. It smelled of {dish} and "
    "{fruit.s}, so {h} slept {spot}.",

    // Whose child is it?
    "Mother {mother:m} had lost her {m.1} in {syllable.C}-{syllable}-{syllable}. She met "
    "{trait.a} {mother:o.1}. <Are you mine?> <No, my mother is {o.a}.> She met {look.a} "
    "{mother:q.1} with {toy.a}. <Are you mine?> <No, my mother is {q.a}.> And who {moved} out of "
    "{look.a} {colour} {container}? The {m.1}!",

    // A shop with no customers.
    "In the town of {syllable.C}-{syllable}-{syllable} {trait.a} {trade:t} named {name:h} "
    "{surname} made {t.1}, but the {t.2} was empty and {h} was {glum}. {h.He} painted "
    "{colour:c.a} sign: <[w:With {dish:d} and {fruit:a.s}|Every {day} a song|Made by {trait:x} "
    "{animal:y.s}]!> [w?Soon it smelled of {d} and {a.s}|Then {h} sang {softly}|People came to "
    "see the {x} {y.s}], and soon the {t.2} was too small for {2 to 9} {animal.s}.",

    // A race, and who wins it.
    "Two friends, {trait.a} {animal:x} and {trait.a} {animal:y}, had a race. The {x} {moved} and "
    "the {y} {moved}. [w:But the {x} stopped for {dish}|Then the {y} fell over {look.a} "
    "{container}]. <I won!> {said} the [w?{y}|{x}] {softly}. The prize was {look.a} {colour} "
    "{treasure} with {fruit.s}. {aside}",

    // A letter.
    "Dear {name:f},\nthank you for the {look} {toy:o}! I call it "
    "{syllable.C}-{syllable}-{syllable} and keep it {spot:s}. Here are {2 to 9:n} {colour} "
    "{fruit:a.s}. [w:Give {1 to n-1:m} to your {kin}|Have them with {dish:d}]. Are you still "
    "{glum}, and can you {skill} and play {game}?\nYour {trait} friend {name:h} {surname}\nP.S. "
    "[w?That leaves {n-m} {a#n-m} for you.|{d.C} with {a.s} is so good!] The {o} is still {s}.",

    // A seed grows: months in a row.
    "Grandfather gave {trait} {name:h} {surname} {look.a} seed. In {month:m} it lay in {colour.a} "
    "{container}. In {m.1} it was as tall as {trait.a} {animal}. In {m.2} it was as tall as "
    "{tree.a}, with {2 to 9:n} {colour} {fruit:a.s}. {h} [w:gave {1 to n-1:k} to {h.his} "
    "{kin}|ate {1 to n-1:k} with {dish}], and {n-k} {a#n-k} [n-k-1?was|were] left for the {trait} "
    "{animal.s}.",

    // Swapping one thing for another: who has it now?
    "Here is how {name:h} {surname} came by {look.a} {vehicle:v}. {h.He} swapped {colour.a} "
    "{toy:a} for {look.a} {treasure:b} with {name:f}, the {b} for {clothes:c.a} with {trait} "
    "{name:g}, and the {c} for the {v} with {trade:t.a}. <Who has [w:your {a}|that {b}|the {c}]?> "
    "{said} {trait.a} {kin}. <[w?{f}|{g}|The {t}],> {said} {h} {softly}.",

    // Equal shares.
    "Three {trait} {animal:x.s} {moved} to the {place} for {colour} {fruit:f.s}. Each found {2 to "
    "6:k}. <Together {k+k+k},> {said} one. They [gave {1 to k:m} to {trait} {name}|ate {1 to k:m} "
    "{spot}], and that left {k+k+k-m} to go with the {dish}. {aside}",

    // A secret fear.
    "Nobody knew that {trait} {name:h} {surname} feared {fear:f}. One {day} {h.he} told {trait.a} "
    "{animal:y}. <I fear {fear:g},> {said} the {y}. They had {dish} with {fruit.s} and laughed "
    "{softly} at {f} and {g}. Now {h} does not fear {f}, and the {y} is {glad}.",

    // A parcel and a hint.
    "<What is in the {look} {container:b}?> {said} {name:h} {surname}. On it was {colour.a} "
    "ribbon and {look.a} {treasure}. <{gift:g},> {said} {h.his} {trait} {kin:k}. <{trait.A} "
    "{animal}?> <No!> <Then it must be {g.1},> {said} {h} {softly}. It was {g.1}.",

    // A snowman, and what the sun leaves of it.
    "Snow fell, and {trait} {name:h} {surname} and {trait} {name:f} built {name:s} the snowman, "
    "with {fruit:a.a} for a nose, {2 to 9:n} {colour} {trinket:b.s} and {look.a} {clothes:d}. On "
    "{day} the sun came and {s} melted. {h} took the {a}, {f} took the {n} {b.s}, and {trait.a} "
    "{animal} wears the {d}.",

    // A boat and its crew: how many are aboard?
    "Down by the river lay a boat called the {look:l} {flower:f}, made of {colour.a} {container}. "
    "First {2 to 6:n} {trait} {animal:x.s} {moved} aboard, then {2 to 6:m} {animal:y.s} with "
    "{dish}. <You are {n+m},> {said} {name:h} {surname}, and the {l} {f} sailed to the {place} "
    "full of {colour} {fruit.s}.",

    // A recipe that goes wrong.
    "To bake {fruit:a.a} cake, {trait} {name:h} {surname} needed {3 to 9:n} eggs, but had only {2 "
    "to n-1:m}. {h.He} {moved} to the {place} for {n-m} more. {trait.A} {animal:x} gave {h.him} "
    "{2 to 6} {colour} {fruit:b.s}. So {h} baked {b.a} cake with {dish}, and {h.his} {kin} was "
    "{glad}.",

    // Questions and answers.
    "After school {trait.a} {kin:k} asked {name:h} {surname}, <What is not {contrary:a}?> <It is "
    "{a.1}.> <And not {contrary:b.1}?> <That is {b}.> <The magic word?> <It is "
    "{syllable}-{syllable}-{syllable}.> <The child of {mother:m.a}?> <It is {m.1a}.> <How many "
    "are {2 to 9:i} and {2 to 9:j}?> <They are {i+j}.> So {h} got {dish} with {fruit.s} and "
    "{look.a} {treasure}.",

    // Paint.
    "Little {name:h} {surname} of {syllable.C}-{syllable}-{syllable} had two paints, {paint:p}, "
    "for {look.a} {vehicle:v}. {trait.A} {animal:x} {moved} in and stirred them with its "
    "{body:b}. <Now I have only {p.1}!> {said} {h}. So {h.his} {kin:k} got {p.1a} {v} with "
    "{look.a} {treasure}, and the {x} had {p.1a} {b}.",

    // Getting on and off.
    "Early on {day} {look.a} {vehicle:v} left with {2 to 6:n} {trait} {animal:x.s}. At the "
    "{place} {2 to 6:m} {trait} {animal:y.s} got on. At the {place} {1 to n-1:k} of the {x.s} got "
    "off to buy {dish} and {fruit.s}. <Then we are {n-k+m},> {said} {name:h} {surname}, who drove "
    "the {v} {softly}.",

    // An echo.
    "Far away behind the {place} {trait} {name:h} {surname} {moved} about and shouted, "
    "<{shout:a}!> <{a}!> said the echo. <Do you want {dish:d} with {fruit:b.s}?> <{d.C} with "
    "{b.s}!> <{syllable:x}-{syllable:y}-{syllable:z}!> <{x}-{y}-{z}!> {ending}",

    // The price of a toy.
    "In the window stood {look.a} {colour:c} {toy:t}. It cost {4 to 9:n} coins, but {trait} "
    "{name:h} {surname} had only {1 to n-1:m}. {h.He} [fed the {animal.s}|sold {fruit.s}|played "
    "the {instrument}] for {trait.a} {kin:k} and earned {n-m} more. Now the {c} {t} lives {spot} "
    "with {look.a} {treasure}.",

    // The way there, and the way back.
    "The way to {trait} {name:f} goes past the {place:a}, the {place:b} and the {place:c}. "
    "{name:h} {surname} {moved} there with {dish} and {fruit.s}. <And back?> {h.he} {said} "
    "{softly}. <Past the {c}, the {b} and the {a},> {said} {f}. {together}",

    // Steps forth and back.
    "Captain {name:h} {surname} had {look.a} map. <From the {tree:t} go {4 to 9:n} steps {way:w} "
    "and {1 to n-1:m} {w.1}.> <Then it is {n-m} {w},> {said} the {trait} {animal}. They {moved} "
    "there and found {look.a} {container} with {look.a} {treasure}, {colour} {trinket.s} and "
    "{dish}. {ending}",

    // Birthdays.
    "Today {trait} {name:h} {surname} of {syllable.C}-{syllable}-{syllable} is {4 to 9:n} years "
    "old. {name:f} is {1 to 3:k} [w:more|less], so {f.he} is [w?{n+k}|{n-k}]. There was {fruit} "
    "cake with {dish}, and {look.a} {container:c} with {colour.a} {toy:t}. <Thank you, {f}! I "
    "shall keep the {t} {spot},> {said} {h}. {together}",

    // A wise judge.
    "<That is my {colour} {clothes:o}!> {said} {name:f}. <No, mine!> {said} {name:h} {surname}. "
    "<How many {look} {trinket:b.s} has the pocket?> {said} the {ruler:r} of "
    "{syllable.C}-{syllable}-{syllable}. <It has {2 to 9:n},> said {f}. <It has {n+1},> said {h}. "
    "The {r} [w:bent down|put on spectacles] and found [w?{n}|{n+1}]. So the {o} is [w?{f}|{h}]'s.",

    // Pulling, all in a row.
    "Grandfather sang <{syllable}-{syllable}-{syllable}> and pulled at {look.a} {fruit:t}. Up "
    "{moved} {trait.a} {animal:a} and pulled at Grandfather. Up {moved} {trait.a} {animal:b} and "
    "pulled at the {a}. Up {moved} {trait.a} {animal:c}. The {c} pulled at the {b}, the {b} at "
    "the {a}, the {a} at Grandfather, and pop! They ate the {t} with {dish} and {fruit.s}.",

    // What to be.
    "When {trait} {name:h} {surname} grows up, {h.he} will be {job:a}, with {look.a} {vehicle}. "
    "{trait:t.C} {name:f} will be {job:b} in {syllable.C}-{syllable}-{syllable} and live on "
    "{dish}. But every {day:d} {h} will be {b} and {f} will be {a}, and on {d.1} they will play "
    "{game}.",

    // A wish.
    "High on a hill {look.a} {tree:t} granted wishes. <I want {look:l.a} {toy:o}!> {said} {trait} "
    "{name:h} {surname}. <[w:Puff|Say please],> {said} the {t} {softly}. [w?There it was, "
    "{colour} and {l}, {spot}.|<Please!> {said} {h}, and got {colour:c.a} {o} full of {dish}.] "
    "{ending}",

    // A saying.
    "My {trait} {kin:k} from {syllable.C}-{syllable}-{syllable} says, <{proverb:p}.> Once {k.he} "
    "lost {k.his} {look} {clothes:c} {spot} and {said}, <{p}!> When I fell into {look.a} "
    "{container} of {dish}, {k.he} {said}, <{p}!> What does it mean? I must ask the {trait} "
    "{animal}.",

    // A rumour grows.
    "Have you heard? {trait.C} {name:h} {surname} found {2 to 9:n} {colour} {trinket:a.s} {spot}. "
    "{name:f} told {trait.a} {animal:x} that it was {n+1}, and the {x} told {trait.a} {ruler:r} "
    "that it was {n+2}. <Show me {n+2}!> {said} the {r}. <It is only {n},> {said} {h} {softly}.",

    // Eating, day by day.
    "All week {trait.a} {animal:x} named {syllable.C}-{syllable}-{syllable} ate. On {day:d} it "
    "was one {colour} {fruit:a}, on {d.1} two {look} {fruit:b.s}, and then three {fruit:c.s}. "
    "<You are too plump to {skill},> {said} {trait.a} {kin}. <It was only three {c.s}, two {b.s} "
    "and one {a},> {said} the {x}.",

    // A band with one player missing.
    "Music by the {place}! {trait.A} {animal:a} plays the {instrument:i}, {trait.a} {animal:b} "
    "the {instrument:j}, and {trait.a} {animal:c} the {instrument:k}. [w:Today|Sometimes|On "
    "{day}] the [w?{a}|{b}|{c}] is {glum}, and {name} plays the [w?{i}|{j}|{k}]. It sounds like "
    "{vehicle.a} full of {animal.s}.",

    // Two who meet.
    "<Who are you?> {said} the {trait} {animal:x}. <I am {name:h} {surname}. And you?> <I am "
    "{name:f} {surname}. [w:Do you like {dish:d}|Can you {skill:k}]?> <[w?I like {d} with "
    "{fruit.s}|I can {k} {softly}],> {said} {h}. {together}",
    NULL,
};
