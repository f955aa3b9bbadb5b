"""Write the embedded texts: a corpus of plain sentences to train on and an STS-style dev set to measure with.

    python benchmarks/make_embedded_text.py --output_dir hf_robustcse/assets [--seed 0] [--check]

Every sentence comes from the seeded grammar in this file; no text is taken from elsewhere. A clause starts as a
`Frame` (who does what, when, where, how, why), which is then worded. A dev pair is one frame worded twice, or two
frames that differ in known slots, and its score follows from the slots that differ. Clauses of dev are held out of the
corpus. Only `random.Random.random` is drawn from: it is the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import io
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# "# topic: places"; then, apart by ";", "who" persons or "it" anything else: the agents of the verbs after it, each
# "verb: objects"; last "is subjects: adjectives". "a/b" are synonyms, "a ! b" antonyms; "new+house" can lose its "new".
TOPICS = """
# cooking: in the kitchen, at the bakery, in a busy restaurant/in a crowded restaurant, over an open fire; who:
  chef/cook, baker, waiter/server, kitchen assistant/kitchen helper, my grandmother/my grandma, hotel owner; fry:
  onions, fish, mushrooms, eggs, potatoes, bacon, pancakes; bake: fresh+bread, chocolate+cake, biscuits/cookies, apple
  pie, pizza, rolls; taste/try ! refuse/turn down: broth/soup, hot+curry, goat cheese, tomato salad, roast+beef, wine;
  chop/cut up: carrots, green+peppers, garlic, cabbage, walnuts, herbs; boil: rice, noodles/pasta, beans, sweet+corn,
  lobster; order ! send back: breakfast, dinner/supper, dessert, rare+steak, pot of coffee, vegetable soup; is soup,
  stew, sauce, meal: hot ! cold, salty ! sweet, delicious/tasty ! awful/terrible, spicy ! mild; is kitchen, oven, frying
  pan: clean ! dirty, spotless/perfectly clean ! greasy, too small ! big enough
# travel: at the airport, near the border/close to the border, on a tropical island, in a foreign city; who:
  tourists/travellers, businessman, young+couple, backpacker, tour guide, flight attendant; book/reserve ! cancel/call
  off: cheap+hotel room, flight, train ticket, bus tour, guided+tour, cabin; pack ! unpack: suitcase/bag, warm+clothes,
  sleeping bags, camera, medicine chest; visit: ancient+castle, seaside/beach, mountain village, cathedral, Roman+ruins,
  palace, waterfall; miss ! catch: last+train, plane/flight, ferry, night+bus, connection; lose/mislay ! find: passport,
  road map, luggage/baggage, room key, wallet; cross: frontier/border, desert, narrow+bridge, mountain pass; is hotel,
  beach, train, airport: crowded/full of people ! empty/deserted, clean ! dirty, modern ! old-fashioned; is
  journey/trip, flight, bus ride: long ! short, comfortable ! uncomfortable, cheap/inexpensive ! expensive, dangerous !
  safe
# weather: along the coast, in the north, throughout the country/across the whole country, in the valley; it:
  storm/tempest, flood, hurricane, strong+winds, heavy+rain, thick+snow; destroy/wreck: wooden+houses/homes, wheat
  harvest, orchard, fishing port, greenhouse; block ! clear: mountain road, railway line, highway/motorway, drains;
  damage: church roof, power lines, steel+bridge, sailing boats, telephone masts; delay/hold up: flights, football
  match, opening ceremony, goods trains; who: forecasters/meteorologists, weather office, radio station, scientists at
  the observatory; predict/forecast: rain, fog/mist, sunshine, frost, thunderstorms, drought; measure: the temperature,
  the wind speed, the rainfall, the air pressure, the depth of the snow; warn/alert: residents/inhabitants, sailors,
  drivers/motorists, mountaineers; is weather, evening, night, winter: cold/chilly ! warm, wet/rainy ! dry, stormy !
  calm, cloudy/overcast ! clear; is summer, month, season: hot ! cool, unusually humid, pleasant ! unpleasant
# office: at the office, in the meeting room, at headquarters/at the head office, during the conference; who:
  manager/boss, secretary/assistant, engineers, accountant/bookkeeper, new+colleague, director; sign ! reject:
  contract/agreement, lease, letter, purchase order, annual+report; answer/reply to ! ignore: email, telephone
  call/phone call, customer's question, complaint; hire/employ ! fire/dismiss: lawyer/attorney, designer, cleaner, sales
  team, consultants; organise/arrange ! postpone/put off: meeting, training course, job interview, office party,
  workshop; print: invoices/bills, business cards, yearly+budget, timetable, price list; present/show: business plan,
  sales figures, marketing campaign, new+logo, survey; is office, staff, team, manager: busy/occupied ! free/available,
  friendly ! unfriendly, efficient ! slow; is meeting, report, contract, project: long/lengthy ! brief/short, important
  ! unimportant, urgent, confidential/secret ! public
# science: in the laboratory, at the university, under a microscope, in a series of experiments; who:
  scientists/researchers, chemist, physicist, biology student, professor, inventor; discover: new+element, virus,
  rare+mineral, chemical reaction, gene, fossil; study/examine: bacteria, the behaviour of ants, crystals, cells, the
  human brain, magnetic field; test/check ! ignore: theory/hypothesis, vaccine, battery, water sample, formula; publish:
  paper/article, results/findings, textbook, data, scientific+journal; heat ! cool: liquid, copper wire, iron, gas,
  glass tube; win: the Nobel Prize, research grant, gold+medal, science award; is experiment, theory, method, discovery:
  simple ! complicated/complex, successful ! unsuccessful, important/significant, wrong/false ! true/correct; is acid,
  gas, substance: dangerous/hazardous ! harmless/safe, poisonous/toxic, invisible ! visible, rare ! common
# sports: in the stadium, at the Olympic Games, on the training ground, in the second half; who: goalkeeper, football
  team/soccer team, coach/trainer, captain, tennis player, swimmer; win ! lose: cup final/final, match/game,
  world+championship, race, tournament, league title; train for/prepare for: marathon, relay race, cycle tour, swimming
  contest/swimming competition; break ! keep: world+record, promise to the fans, rules; score ! miss: penalty,
  decisive+goal, winning+point, free kick; praise ! criticise: referee, young+striker, supporters/fans,
  opponents/rivals, defence; throw ! catch: ball, javelin, baseball, frisbee; is match/game, race, tournament:
  exciting/thrilling ! boring/dull, fair ! unfair, tough/hard ! easy; is team, goalkeeper, champion, crowd: strong !
  weak, tired/exhausted ! fresh, nervous ! calm, disappointed ! delighted
# family: at home, in the living room, at the dinner table, in the nursery; who: mother/mum, father/dad, grandparents,
  little+girl, twins, uncle, teenager; wake: baby/infant, children/kids, toddler, sleepy+boy; hug/embrace: daughter,
  son, aunt, cousin, old+friend; clean/tidy ! mess up: bedroom, bathroom, cupboard, shelves, attic; wash: dishes/plates,
  curtains, dirty+laundry, windows, blankets; celebrate: birthday, wedding, the New Year, engagement,
  silver+anniversary; read ! write: bedtime story/story, postcard, diary, love letter, comic book; is baby/infant, boy,
  sister, grandfather/grandpa: happy/glad ! sad/unhappy, asleep ! awake, hungry, healthy ! sick/ill; is house/home,
  bedroom, living room: quiet/silent ! noisy/loud, tidy ! untidy, dark ! bright, cosy
# animals: at the zoo, in the backyard, in the jungle, under the porch; it: dog/hound, cat, wolf, lion, bear, eagle,
  monkeys, tiger; chase ! run away from: rabbit/hare, squirrel, mice, deer, wild+pig, goat; eat/devour: meat, insects,
  berries, bananas, honey, bird's eggs; guard/protect: nest, young+cubs, territory, cave, den; attack: snake, buffalo,
  herd of zebras, flock of geese, hen; hear ! see: hunter, footsteps, strange+sound, cry of an owl; who:
  vet/veterinarian, zoo keeper, dog owner, animal trainer, biologist; feed: elephants, parrot, kittens, giraffe,
  penguins, turtle; rescue/save: puppy, injured+fox, whale, hedgehog, donkey; is dog, horse, parrot, elephant: tame !
  wild, gentle ! aggressive, hungry ! well fed, clever/intelligent ! stupid; is snake, spider, bear, insect:
  poisonous/venomous, enormous/huge ! tiny, fast/quick ! slow, frightening/scary
# music: in the concert hall, on stage, at the festival, in a recording studio; who: pianist, singer/vocalist,
  orchestra, rock band, violinist, choir, composer; play/perform: sonata, piano concerto, folk melody/folk tune, waltz,
  the national anthem, symphony; sing: hymn, lullaby, love+song, ballad, opera aria, carol; record: album, single,
  live+concert, soundtrack, duet; tune: guitar, cello, harp, drums, grand+piano; thank/express thanks to ! disappoint:
  audience/listeners, conductor, patrons, critics; compose/write: ballet, film score, march, string quartet, musical; is
  song, melody/tune, concert, album: popular/well liked ! unpopular, loud ! quiet/soft, beautiful/lovely ! ugly,
  cheerful ! sad/gloomy; is singer, drummer, orchestra: famous/well known ! unknown, talented/gifted, nervous ! relaxed,
  young ! old
# traffic: in the city centre/downtown, at the crossroads/at the intersection, on the ring road, near the station; who:
  bus driver, cyclist, taxi driver/cab driver, pedestrians, truck driver/lorry driver, motorcyclist; park:
  car/automobile, van, motorbike/motorcycle, delivery truck/delivery lorry, scooter; repair/fix ! break: bicycle/bike,
  flat+tyre, engine/motor, brakes, headlights; pass/overtake: tram, ambulance, slow+tractor, fire engine, coach; ignore
  ! obey: traffic light, the speed limit, stop sign, police officer; hit/crash into ! avoid: lamp post, fence,
  parked+vehicle, tree, roadblock; it: city council, traffic police, road workers; close ! open: tunnel, main+street,
  car park, underground station/subway station, bus lane, bridge; is road/street, crossing, tunnel: busy ! quiet, narrow
  ! wide/broad, slippery, dangerous ! safe; is bus, car, taxi, tram: late/delayed ! on time, full ! empty, fast ! slow,
  new ! old
# health: at the hospital, in the emergency room, at the clinic, after the operation/following the surgery; who:
  doctor/physician, nurse, surgeon, dentist, pharmacist/chemist, paramedics; treat: patient, broken+leg, skin
  disease/skin illness, burns, high+fever, cancer; prescribe: pills/tablets, painkillers, antibiotics, eye drops,
  strict+diet, rest; examine/check: eyes, heart, injured+knee, teeth, lungs, blood sample; recommend/suggest ! advise
  against: exercise/physical activity, vitamins, herbal+tea, massage, fresh air; clean ! infect: wound/cut, instruments,
  ear, bandage; comfort/console: worried+parents, dying man, accident victims, pregnant+woman; is patient, nurse, old
  man, child: sick/ill ! healthy/well, weak ! strong, pale, conscious ! unconscious; is operation/surgery, treatment,
  medicine: painful ! painless, effective ! useless, necessary ! unnecessary, risky ! safe
# school: in the classroom, at school, in the library, on the blackboard; who: teacher/instructor,
  pupils/schoolchildren, students, headmaster/principal, librarian, class; solve/work out: equation, difficult
  problem/hard problem, puzzle, riddle, crossword; pass ! fail: exam/test, spelling test, driving test,
  final+examination; learn ! forget: poem, French+vocabulary, the alphabet, multiplication table, grammar; explain:
  chemistry lesson, the meaning of the word, homework/assignment, fractions, rule; borrow ! return/give back:
  dictionary, atlas, history book, calculator, pencils/pens; draw: triangle, map of Europe, circle, portrait,
  colourful+picture; is exam/test, lesson/class, homework: difficult/hard ! easy/simple, interesting ! boring/dull, long
  ! short, useful ! useless; is teacher, classroom, pupil, school: strict ! lenient, quiet ! noisy, polite ! rude,
  popular ! unpopular
# technology: on the internet/online, in the server room, at a software company, in the app store; who:
  programmer/software developer, user, hacker, technician, start-up company, web designer; install ! remove/delete:
  program, game, update, operating system, browser, security+patch; buy/purchase ! sell: laptop/notebook, smartphone,
  printer, tablet, digital+camera, keyboard; copy: files, photos/pictures, database, web page, password, source code;
  invent/design: robot, search engine, microchip, mobile+app, machine, satellite dish; fix/repair ! introduce:
  bug/error, security hole, memory leak, broken+link; switch on/turn on ! switch off/turn off: computer, screen/monitor,
  television, router, microphone, projector; is computer, network, software, website: fast/quick ! slow, reliable !
  unreliable, secure/safe ! insecure, modern/up to date ! outdated; is screen, phone, battery, keyboard: broken/damaged
  ! intact, cheap ! expensive, light ! heavy, small ! large
# history: in the Middle Ages, in ancient Egypt, after the revolution, in the nineteenth century; who: king/monarch,
  emperor, queen, general, knights, Roman+soldiers/Roman troops, explorer; conquer/capture ! lose: fortress/stronghold,
  the capital, kingdom, port, holy+city; defeat/beat: army, invaders, rebels, pirates, enemy fleet; build/construct !
  demolish/tear down: pyramid, temple, city wall, triumphal+arch, canal, monument; found/establish: colony, abbey,
  dynasty, university, empire; declare/proclaim: independence, war, republic, amnesty; murder/kill ! spare: prince,
  traitor, messenger, tyrant, prisoners; is king, emperor, general, queen: cruel ! kind, powerful/mighty ! weak, wise !
  foolish, brave/courageous ! cowardly; is war, battle, empire, revolution: bloody, long ! short,
  inevitable/unavoidable, glorious
# money: at the bank, on the stock market/on the stock exchange, at the auction, in a difficult year; who: banker,
  investors, shopkeeper, customer/client, insurance company, millionaire/rich man, tax office; buy/acquire ! sell:
  shares/stocks, gold, land, apartment block, factory/plant, bonds, diamonds; lend ! repay/pay back: large+sum,
  mortgage, small+loan, deposit; raise/increase ! reduce/cut: prices, interest rates, rents, wages/salaries, taxes,
  fees; count: coins, banknotes, profits, savings, losses; spend ! save: salary, inheritance, pocket money, pension;
  open ! close: bank account/account, branch, safe, discount+store; is bank, company/firm, economy: rich/wealthy ! poor,
  profitable ! unprofitable, stable ! unstable, bankrupt; is price, rent, tax, salary: high ! low, fair/reasonable !
  unfair, fixed ! variable
# nature: in the forest/in the woods, on the mountain, by the lake/beside the lake, in the national park; who:
  hikers/walkers, ranger, climber/mountaineer, photographer, scouts, botanist; climb ! descend: peak/summit, cliff,
  steep+hill, glacier, volcano, rocks; explore: cave, canyon, rain forest, swamp/marsh, underground+river; pick/gather:
  flowers, wild+strawberries, pine cones, chestnuts, leaves; watch/observe: butterflies, owl, sunset, eclipse, beavers,
  waterfall; light ! put out/extinguish: camp fire, torch, lantern, stove; plant ! cut down: oak tree/oak, pines, hedge,
  palm trees, rose bush; is forest, valley, lake, meadow: green, peaceful/tranquil, deep ! shallow, beautiful/scenic; is
  mountain, path/trail, cliff: steep ! flat, high/tall ! low, rocky, muddy ! dry
# crime: in court, at the police station, in the prison yard, at the scene of the crime; who: police,
  detective/investigator, judge, witness, lawyer/attorney, prison guard, jury; arrest/detain ! release/set free:
  thief/burglar, suspect, drug dealer, gang, robber, bank clerk; search: apartment/flat, stolen+car, warehouse,
  suspect's pockets, cellar/basement; find/discover ! hide/conceal: fingerprints, weapon/gun, knife, stolen+jewels,
  body, evidence/proof; question/interrogate: neighbours, eyewitness, night porter, kidnapper, victim; accept !
  reject/refuse: confession, appeal, alibi, offer of a bribe, verdict; identify/recognise: murderer/killer,
  forged+signature, voice, licence plate; is suspect, defendant/accused man, thief: guilty ! innocent, armed ! unarmed,
  violent ! peaceful; is crime, trial, sentence, evidence: serious/grave ! trivial, shocking, convincing ! unconvincing,
  brief ! long
# arts: in the theatre, at the gallery, in the cinema/in the movie theatre, at the film festival; who: actor,
  painter/artist, director/film maker, novelist/author, sculptor, critic, actress; paint: landscape, mural, still life,
  self-portrait, abstract+canvas; write ! burn: novel, screenplay/script, biography, poems/verses, detective+story,
  play; praise/applaud ! condemn: exhibition, film/movie, performance, comedy, Italian+opera, thriller; carve:
  wooden+statue, marble bust, relief, mask, figure of a saint; steal: masterpiece, Dutch+painting, vase,
  ancient+sculpture, altar; edit/revise: manuscript, documentary, cartoon, chapter, magazine; is film/movie, novel,
  play, exhibition: funny/amusing ! serious, boring/tedious ! exciting, brilliant/excellent ! terrible/dreadful, famous;
  is actor, painter, writer/author: young ! elderly/old, unknown ! famous/celebrated, arrogant ! modest, rich ! poor
# clothes: at the department store, in the fitting room, at the flea market, during the sales; who: tailor, shop
  assistant/sales clerk, bride, fashion designer, model, elderly+lady, shopper; sew/stitch: dress/gown, silk+shirt,
  curtains, buttons, wedding dress, costume; try on ! take off: shoes, leather+jacket, hat, jeans, gloves, fur coat;
  buy/purchase ! return/bring back: ring, red+sweater/jumper, necklace, sunglasses, handbag, perfume; wear: uniform,
  scarf, black+suit, boots, pearl earrings, raincoat; iron: skirt, blouse, trousers/pants, tablecloth, handkerchiefs;
  wrap ! unwrap: present/gift, parcel/package, bottle, toy train, box of chocolates; is dress, jacket, skirt, hat:
  elegant/stylish ! shabby, too tight ! too loose, cheap ! expensive/dear, fashionable ! old-fashioned; is shop/store,
  shop window, market: open ! closed/shut, crowded ! empty, famous, near ! far away
# building: on the building site, on the first floor, in the workshop, on the roof; who: carpenter, bricklayer, plumber,
  architect, electrician, builders/construction workers, painter; repair/mend: roof, broken+window, leaking+pipe,
  staircase, heating, chimney; build/put up ! pull down/tear down: garage, brick+wall, shed, skyscraper, garden fence,
  balcony; paint: door, ceiling, front gate, wooden+bench, kitchen walls; measure: floor, beam, bathroom tiles,
  planks/boards, the width of the gate; install/fit ! remove/take out: shower, sink, lamp/light, lift/elevator, wash
  basin, radiator; use: hammer, electric+drill, ladder, saw, crane, screwdriver, wheelbarrow; is house, wall, roof,
  tower: high/tall ! low, old ! new, solid/strong ! unsafe, nearly finished/almost complete; is hammer, drill, ladder,
  saw: heavy ! light, useful/handy ! useless, broken, sharp ! blunt
"""


def listed(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", " ").split(",")]


NAMES = """Maria Ahmed Julia Peter Yuki Carlos Anna David Fatima Thomas Elena Samuel Ingrid Victor Leila George Clara
Ivan Susan Hassan Emma Daniel Sofia Henry Nina Oscar Ruth Marco Alice Kenji""".split()
IRREGULAR = """be was been, beat beat beaten, bring brought brought, break broke broken, build built built, buy bought
bought, catch caught caught, cut cut cut, draw drew drawn, eat ate eaten, feed fed fed, find found found, forecast
forecast forecast, fit fitted fitted, forget forgot forgotten, give gave given, hear heard heard, hide hid hidden, hit
hit hit, hold held held, keep kept kept, learn learnt learnt, lend lent lent, light lit lit, lose lost lost, mislay
mislaid mislaid, overtake overtook overtaken, pay paid paid, put put put, read read read, repay repaid repaid, run ran
run, see saw seen, sell sold sold, send sent sent, set set set, sew sewed sewn, show showed shown, sing sang sung,
spend spent spent, steal stole stolen, take took taken, tear tore torn, throw threw thrown, wake woke woken, wear wore
worn, win won won, write wrote written"""
DOUBLED = "cancel forget unwrap".split()  # two syllables, and the last consonant is doubled
MASS = """cancer fish bacon bread beef wine garlic rice corn breakfast dinner supper dessert coffee soup broth curry
cheese salad luggage baggage rain fog mist sunshine frost drought iron gas wire defence laundry meat honey rest exercise
activity tea vocabulary grammar homework code independence war amnesty gold land wheat evidence proof heating perfume
staff software pasta""".split()
PLURAL = "children police mice bacteria data deer teeth".split()
SINGULAR = ["atlas", "canvas", "class", *NAMES]
PREPOSITIONS = "of for from on in to with at against into after about".split()
UNGRADED = "asleep awake guilty innocent open closed shut conscious unconscious unknown necessary".split()
PAST = listed("""yesterday, last night/the night before, last week/a week ago, on Sunday morning, in 1998, at midnight,
in the afternoon/after lunch, early in the morning/at dawn, two days ago/the day before yesterday, on Friday evening,
last month/a month ago, during the holidays, a long time ago/many years ago, last summer, recently/not long ago""")
FUTURE = listed("""tomorrow, next week/in a week, this evening/tonight, next year, before Friday, soon/before long,
next spring, without delay/as soon as possible, at noon/at twelve o'clock, after the weekend, later today""")
HABIT = listed("""every day/daily, on Sundays/every Sunday, once a month, in winter, all year round/throughout the year,
from time to time/now and then, as a rule/normally, in the evening, several times a week, twice a year""")
HOW = listed("""carefully/with great care, quickly/in a hurry, without any help/unaided, by mistake/by accident,
with a smile, on purpose/intentionally, with great pleasure/gladly, for the first time, once again/one more time,
for no reason""")
WHY = listed("""because it was raining/because of the rain, to save time, to impress the others, because of a bet,
for lack of money/because there was no money left, since there was no other choice/for want of an alternative,
because nobody else wanted to, for safety reasons/to be on the safe side""")
COUNTS = listed("two, three, four, several/a few, a dozen/twelve, many/a lot of, hundreds of, both, most of the")
REPORTS = listed("""said that, thinks that, hopes that, is afraid that, has heard that, does not believe that,
knows that, told everyone that, is quite sure that, wrote to us that, could not understand why""")
WISHES = listed("""asked {} to, wanted {} to, helped {} to, did not allow {} to, has persuaded {} to, will teach {} to,
is waiting for {} to, never expected {} to, saw how {} tried to, paid {} to, reminded {} to""")
ORDERS = listed("please {}, do not {}, never {}, let us {}, remember to {}, you had better {}")
DEGREES = listed("very/extremely, rather/fairly, surprisingly/unexpectedly, a little/slightly, far too/much too")
MODES = listed("past, past, past, past, perfect, progressive, will, might/may, should/ought to, must, present, present")
KINDS = """relative report order compare relative report order compare relative report order none gerund wish plain
ask""".split()
FORMS = {verb: (past, done) for verb, past, done in (row.split() for row in listed(IRREGULAR))}
TIMES = {"past": PAST, "progressive": PAST, "present": HABIT, "perfect": []}
ADJUNCTS = ("how", "where", "when", "why")
# What two clauses of a dev pair share, by score: the agent (or subject), the verb and the object (or quality).
SHARED = {
    (3.5, False, True, True), (3.0, True, True, False), (2.0, False, True, False), (1.5, True, False, False),
    (1.0, False, False, False),
}  # fmt: skip
SHARED_QUALITY = {(3.0, False, True, True), (2.0, True, True, False), (1.0, False, True, False)}
# With dropout positives a small encoder soon tells sentences apart by their length and their shape, and learns nothing
# else: the sentences of the corpus have nearly one length, and most are of a few shapes.
WORDS, CHARACTERS = range(8, 14), range(46, 67)
CORPUS, DEV = "corpus.txt.gz", "data/sts/EMBEDDED/dev.tsv"


class Frame(NamedTuple):
    """One clause: an agent does something to an object or, with the verb "be", a subject has a quality."""

    topic: str
    who: str
    verb: str
    what: str
    opposite: str = ""  # antonyms of the verb or, with "be", of the quality
    human: bool = False
    the_who: bool = True
    the_what: bool = True
    bare: bool = False  # leaves the adjective of the object out
    count: str = ""
    degree: str = ""
    how: str = ""
    where: str = ""
    when: str = ""
    why: str = ""
    mode: str = "past"
    negated: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.who, self.verb, self.what


@dataclass
class Voice:
    """Words frames; asked again for a choice it made before, it makes it again with probability `echo`."""

    rng: random.Random
    echo: float = 1.0
    memory: dict[str, str] = field(default_factory=dict)

    def choose(self, key: str, options: Sequence[str]) -> str:
        old = self.memory.get(key)
        if old not in options or not chance(self.rng, self.echo):
            old = pick(self.rng, [option for option in options if option != old] or options)
        self.memory[key] = old
        return old

    def word(self, synonyms: str) -> str:
        return self.choose(synonyms, synonyms.split("/"))


def pick(rng: random.Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def inflect(phrase: str, form: str) -> str:
    """The "s", "past", "done" or "ing" form of a verb, which is the first word of `phrase`."""
    verb, _, rest = phrase.partition(" ")
    vowels = [c in "aeiou" for c in verb]
    groups = sum(v and (i == 0 or not vowels[i - 1]) for i, v in enumerate(vowels))
    doubled = verb[-1] not in "wxy" and vowels[-3:] == [False, True, False] and groups == 1
    stem = verb + verb[-1] if doubled or verb in DOUBLED else verb
    if form == "ing":
        out = stem[:-1] + "ing" if verb.endswith("e") and not verb.endswith("ee") and verb != "be" else stem + "ing"
    elif form != "s" and verb in FORMS:
        out = FORMS[verb][form == "done"]
    elif verb[-1] == "y" and not vowels[-2]:
        out = verb[:-1] + ("ies" if form == "s" else "ied")
    elif form == "s":
        out = verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")
    else:
        out = verb + "d" if verb[-1] == "e" else stem + "ed"
    return f"{out} {rest}".strip()


@functools.cache
def number_of(phrase: str) -> str:
    """Whether a noun phrase is "one", "many" or "mass"."""
    words = phrase.split()
    head = next((words[i - 1] for i, word in enumerate(words) if i and word in PREPOSITIONS), words[-1])
    plural = head.endswith("s") and not head.endswith(("ss", "us", "is")) and head not in SINGULAR
    return "mass" if head in MASS else "many" if plural or head in PLURAL else "one"


def article(phrase: str) -> str:
    an = phrase[0] in "aeiouIE" and not phrase.startswith(("uni", "use", "Euro", "one"))
    return ("an " if an or phrase.startswith(("hour", "honest")) else "a ") + phrase


def noun_phrase(voice: Voice, noun: str, the: bool = True, count: str = "", bare: bool = False) -> tuple[str, bool]:
    """A noun phrase, as (words, whether it is plural)."""
    adjective, _, nouns = noun.rpartition("+")
    head = voice.word(nouns)
    number = number_of(head)
    phrase = f"{adjective} {head}" if adjective and not bare else head
    if head not in NAMES and head.split()[0] not in ("my", "the"):
        if number == "many" and count:
            phrase = f"{voice.word(count)} {phrase}"
        elif the:
            phrase = f"the {phrase}"
        elif number == "one":
            phrase = article(phrase)
    return phrase, number == "many"


def verb_group(mode: str, verb: str, plural: bool, negated: bool = False, passive: bool = False) -> list[str]:
    """The words of a finite verb; the first is an auxiliary where `negated`, or where the mode has one."""
    done = [inflect(verb, "done")] if passive else []
    verb = "be" if passive else verb
    no = ["not"] if negated else []
    if mode == "progressive":
        return ["were" if plural else "was", *no, inflect(verb, "ing"), *done]
    if mode == "perfect":
        return ["have" if plural else "has", *no, inflect(verb, "done"), *done]
    if mode in ("past", "present") and verb == "be":
        return [{"present": ("is", "are"), "past": ("was", "were")}[mode][plural], *no, *done]
    if mode == "past":
        return ["did", "not", verb] if negated else [inflect(verb, "past")]
    if mode == "present":
        return ["do" if plural else "does", "not", verb] if negated else [verb if plural else inflect(verb, "s")]
    first, *rest = mode.split()  # "ought to" is "ought not to"
    return [first, *no, *rest, verb, *done]


def predicate(voice: Voice, frame: Frame) -> str:
    """What follows the finite verb, without adjuncts."""
    if frame.verb != "be":
        return noun_phrase(voice, frame.what, frame.the_what, frame.count, frame.bare)[0]
    return f"{voice.word(frame.degree)} {voice.word(frame.what)}"


def clause(voice: Voice, frame: Frame, adjuncts: Sequence[str] = ADJUNCTS, shape: str = "", ask: bool = False) -> str:
    """The words of a clause; with `ask`, of a yes/no question."""
    verb, mode = voice.word(frame.verb), voice.word(frame.mode)
    passive = shape == "passive" and verb != "be" and (verb.endswith(" on") or verb.split()[-1] not in PREPOSITIONS)
    subject, plural = noun_phrase(voice, frame.who, frame.the_who)
    last = f"by {subject}" if passive else predicate(voice, frame)
    if passive:
        subject, plural = noun_phrase(voice, frame.what, frame.the_what, frame.count, frame.bare)
    words = [subject, *verb_group(mode, verb, plural, frame.negated, passive)]
    if ask:
        first, *rest = verb_group(mode, verb, plural, True, passive)
        words = [first, subject, *[word for word in rest if word != "not"]]
    elif frame.negated and mode == "past" and frame.human and not passive:
        other = {"never": ["never", inflect(verb, "past")], "fail": ["failed to", verb]}
        words[1:] = other.get(voice.choose("no", ["not", "never", "fail"]), words[1:])
    elif shape == "cleft" and frame.verb != "be":
        it = "it was" if mode in ("past", "progressive") else "it is"
        words = [it, subject, "who" if frame.human else "that", *words[1:]]
    said = {name: voice.word(getattr(frame, name)) for name in adjuncts if getattr(frame, name)}
    front = "" if ask else voice.choose("front", ["", "", *[name for name in said if name != "how"]])
    opening = [f"{said.pop(front)},"] if front else []
    return " ".join([*opening, *words, last, *said.values()])


def verb_phrase(voice: Voice, frame: Frame, form: str = "", adjuncts: Sequence[str] = ("how", "where")) -> str:
    """A verb with its object and adjuncts and no subject, in the plain or the given form."""
    verb = voice.word(frame.verb)
    said = [voice.word(getattr(frame, name)) for name in adjuncts if getattr(frame, name)]
    return " ".join([inflect(verb, form) if form else verb, predicate(voice, frame), *said])


def finish(text: str, end: str = ".") -> str:
    text = " ".join(text.split())
    return text[0].upper() + text[1:] + end


class Grammar:
    """Draws frames from the tables."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.acts: dict[str, list[tuple[str, str, list[str], list[str], bool]]] = {}
        self.qualities: dict[str, list[tuple[list[str], str, str]]] = {}
        self.places: dict[str, list[str]] = {}
        for row in TOPICS.replace("\n  ", " ").strip().replace("\n", "; ").split("; "):
            left, right = row.split(": ", 1)
            kind, _, head = left.partition(" ")
            if kind == "#":
                topic, self.places[head] = head, listed(right)
                self.acts[topic], self.qualities[topic] = [], []
            elif kind in ("who", "it"):
                agents, human = listed(right), kind == "who"
            elif kind == "is":
                for quality, _, opposite in (adjective.partition(" ! ") for adjective in listed(right)):
                    self.qualities[topic].append((listed(head), quality, opposite))
            else:
                verb, _, opposite = left.partition(" ! ")
                self.acts[topic].append((verb, opposite, listed(right), agents, human))

    def adjunct(self, name: str, frame: Frame) -> str:
        """An adjunct that goes with the mode of `frame`, or "" where none does."""
        past = frame.mode in ("past", "progressive")
        choices = {
            "where": self.places[frame.topic] if frame.verb != "be" else [],
            "when": TIMES.get(frame.mode, FUTURE) if frame.verb != "be" or past else [],
            "how": HOW if frame.human else [],
            "why": WHY if frame.human and past else [],
        }[name]
        return pick(self.rng, choices) if choices else ""

    def act(self, topic: str = "") -> Frame:
        rng = self.rng
        topic = topic or pick(rng, sorted(self.acts))
        verb, opposite, objects, agents, human = pick(rng, self.acts[topic])
        if opposite and chance(rng, 0.5):
            verb, opposite = opposite, verb
        what = pick(rng, objects)
        many = all(number_of(noun) == "many" for noun in what.rpartition("+")[2].split("/"))
        frame = Frame(
            topic, pick(rng, NAMES if human and chance(rng, 0.25) else agents), verb, what, opposite, human,
            the_who=chance(rng, 0.75), the_what=chance(rng, 0.5), bare=chance(rng, 0.3), negated=chance(rng, 0.1),
            count=pick(rng, COUNTS) if many and chance(rng, 0.4) else "",
            mode=pick(rng, MODES if topic != "history" else ["past", "past", "progressive"]),
        )  # fmt: skip
        names = [pick(rng, ["where", "where", "when", "when", "how", "why"]) for _ in range(pick(rng, [0, 1, 1, 2]))]
        return frame._replace(**{name: self.adjunct(name, frame) for name in names})

    def quality(self, topic: str = "") -> Frame:
        rng = self.rng
        topic = topic or pick(rng, sorted(self.acts))
        subjects, what, opposite = pick(rng, self.qualities[topic])
        if opposite and chance(rng, 0.5):
            what, opposite = opposite, what
        mode, negated = pick(rng, ["past", "past", "present", "perfect", "might/may", "will"]), chance(rng, 0.1)
        graded = not any(" " in word or word in UNGRADED for word in what.split("/")) and not negated
        degree = pick(rng, DEGREES) if graded and chance(rng, 0.5) else ""
        frame = Frame(topic, pick(rng, subjects), "be", what, opposite, degree=degree, mode=mode, negated=negated)
        return frame._replace(when=self.adjunct("when", frame) if chance(rng, 0.4) else "")


def corpus_sentence(grammar: Grammar, kind: str) -> tuple[str, list[Frame]]:
    """A sentence of one of the `KINDS`, or "" where the frames drawn do not suit it, with the frames that it says."""
    rng = grammar.rng
    voice, one = Voice(rng), grammar.act()
    two, what = grammar.act(one.topic)._replace(mode=one.mode), grammar.quality(one.topic)
    name = pick(rng, [name for name in NAMES if name not in (one.who, two.who)])
    shape = pick(rng, ["", "", "", "passive", "passive", "cleft"])
    if kind == "plain":
        return finish(clause(voice, one, shape=shape)), [one]
    if kind == "ask":
        word = pick(rng, ["", "", "why", "when", "where", "how often", "since when"])
        question = clause(voice, one._replace(negated=False), ("how",) if word else ADJUNCTS, shape, ask=True)
        return finish(f"{word} {question}", "?"), [one]
    if kind == "report":
        said = pick(rng, [one, what])
        return finish(f"{name} {pick(rng, REPORTS)} {clause(voice, said, ADJUNCTS[:3])}"), [said]
    if kind == "compare":
        others = next(row[0] for row in grammar.qualities[one.topic] if what.who in row[0])
        (first, plural), (second, _) = (noun_phrase(voice, who) for who in (what.who, pick(rng, others)))
        degree = pick(rng, ["as {} as", "not as {} as", "less {} than", "just as {} as", "not nearly as {} as"])
        degree = degree.format(voice.word(what.what))
        text = finish(f"{first} {'were' if plural else 'was'} {degree} {second} {voice.word(what.when)}")
        return text if first != second and " " not in voice.word(what.what) else "", [what]
    if kind == "none":
        thing, plural = noun_phrase(voice, one.what, False, bare=one.bare)
        thing = thing.removeprefix("an ").removeprefix("a ").removeprefix("the ")
        where = voice.word(pick(rng, grammar.places[one.topic]))
        return finish(f"there {'were' if plural else 'was'} no {thing} {where} {voice.word(pick(rng, PAST))}"), []
    if not (one.human and two.human) or one.what == two.what:
        return "", []
    actor, _ = noun_phrase(voice, one.who, one.the_who)
    two = two._replace(who=one.who)
    if kind == "order":
        tail = pick(rng, ["", f"before {verb_phrase(voice, two, 'ing', ())}"])
        return finish(f"{pick(rng, ORDERS).format(verb_phrase(voice, one))} {tail}"), [one]
    if kind == "gerund":
        link = pick(rng, ["after", "before", "instead of", "without", "by", "besides", "while"])
        main = clause(voice, one._replace(negated=False), ())
        return finish(f"{link} {verb_phrase(voice, two, 'ing', ())}, {main}"), [one, two]
    if kind == "relative":
        past = verb_phrase(voice, two, "past", ()), verb_phrase(voice, one, "past", ADJUNCTS[:2])
        return "" if actor in NAMES else finish(f"{actor} who {past[0]} {past[1]}"), [one, two]
    return finish(f"{name} {pick(rng, WISHES).format(actor)} {verb_phrase(voice, one, '', ADJUNCTS[:2])}"), [one]


def wording(voice: Voice, frame: Frame, ask: bool) -> str:
    """A sentence that says `frame`; again with the same voice, a paraphrase."""
    if frame.verb == "be":
        turned = frame.opposite and not frame.negated and not frame.degree and not ask
        shapes = ["", "anything but"] if turned else [""]
    else:
        shapes = ["", "passive"] if ask else ["", "passive", "cleft"]
    shape = voice.choose("shape", shapes)
    if shape == "anything but":
        frame = frame._replace(what=frame.opposite, degree=shape)
    return finish(clause(voice, frame, shape=shape, ask=ask), "?" if ask else ".")


def altered(grammar: Grammar, a: Frame, score: float) -> Frame | None:
    """A frame whose likeness to `a` is `score`, or None where `a` has nothing to alter in that way."""
    rng, act = grammar.rng, a.verb != "be"
    draw = grammar.act if act else grammar.quality
    if score == 5:
        return a
    if score in (4.5, 4.0):  # 4.5: a detail more or less; 4: another time, place or reason, or none
        slots = ("how", "count", "degree") if score == 4.5 else ("when", "where", "why")
        given = [name for name in slots if getattr(a, name)]
        if score == 4.5 and "+" in a.what:
            return a._replace(bare=not a.bare)
        if not given:
            return None
        name = pick(rng, given)
        return a._replace(**{name: "" if score == 4.5 or chance(rng, 0.3) else grammar.adjunct(name, a)})
    if score == 2.5 and (chance(rng, 0.5) or not a.opposite):
        return a._replace(negated=not a.negated)
    if score == 2.5:
        return a._replace(verb=a.opposite) if act else a._replace(what=a.opposite, opposite=a.what)
    if score <= 0.5:  # another topic at the same time; 0.5: the same person
        b = draw(pick(rng, sorted(set(grammar.acts) - {a.topic, "history"})))
        b = b._replace(mode=a.mode, when=a.when, why="")
        if score == 0.5:
            return b._replace(who=a.who) if a.who in NAMES and b.human else None
        return b
    for _ in range(200):
        b = draw(a.topic)
        like = (score, a.who == b.who, a.verb == b.verb, a.what == b.what)
        if like in (SHARED if act else SHARED_QUALITY) and a.human == b.human:
            kept = (*ADJUNCTS, "mode", "negated", "degree") if score > 1 or chance(rng, 0.5) else ()
            return b._replace(**{name: getattr(a, name) for name in kept})
    return None


def dev_pairs(grammar: Grammar, size: int) -> tuple[list[tuple[float, str, str]], set[tuple[str, str, str]]]:
    """`size` distinct pairs, equally many of each half score, in random order, and the clauses in them."""
    rng = grammar.rng
    pairs: dict[tuple[str, str], float] = {}
    keys = set()
    while len(pairs) < size:
        score = len(pairs) % 11 / 2
        a = grammar.act() if chance(rng, 0.75) else grammar.quality()
        b = altered(grammar, a, score)
        if b is None or (b == a) != (score == 5):
            continue
        # The wording misleads, so that counting shared words does not solve the set.
        echo = (0.0, 0.0, 0.4) if score >= 4 else (0.0, 0.3, 0.8) if score >= 2 else (0.5, 0.8, 1.0)
        voice, ask = Voice(rng, pick(rng, echo)), chance(rng, 0.1)
        pair = wording(voice, a, ask), wording(voice, b, ask)
        if pair[0] != pair[1] and pair not in pairs:
            pairs[pair] = score
            keys |= {a.key, b.key}
    rows = sorted((rng.random(), score, *pair) for pair, score in pairs.items())
    return [row[1:] for row in rows], keys


def build(seed: int, corpus_size: int = 20000, dev_size: int = 1000) -> dict[str, bytes]:
    """The texts, by their path in the assets folder."""
    grammar = Grammar(random.Random(seed))
    pairs, held_out = dev_pairs(grammar, dev_size)
    seen = {text for _, *pair in pairs for text in pair}
    corpus: list[str] = []
    while len(corpus) < corpus_size:
        text, frames = corpus_sentence(grammar, KINDS[len(corpus) % len(KINDS)])
        fits = len(text.split()) in WORDS and len(text) in CHARACTERS
        if fits and text not in seen and not any(frame.key in held_out for frame in frames):
            seen.add(text)
            corpus.append(text)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write("".join(f"{text}\n" for text in corpus).encode())
    rows = ["score\tsentence1\tsentence2", *(f"{score:g}\t{one}\t{two}" for score, one, two in pairs)]
    return {CORPUS: buffer.getvalue(), DEV: "".join(f"{row}\n" for row in rows).encode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="the assets folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare with what is there; exit code 1 on a difference")
    args = parser.parse_args()
    for path, data in build(args.seed).items():
        target = args.output_dir / path
        if args.check:
            # The text, not the compressed bytes, which may differ from one zlib to the next.
            unpack = gzip.decompress if target.suffix == ".gz" else bytes
            if not target.is_file() or unpack(target.read_bytes()) != unpack(data):
                sys.exit(f"{target} is not what this grammar writes")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        print(f"{target}: {'as generated' if args.check else f'{len(data)} bytes'}")


if __name__ == "__main__":
    main()
