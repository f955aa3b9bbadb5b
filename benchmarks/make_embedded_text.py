"""Write the embedded texts: a corpus of plain sentences to train on and an STS-style dev set to measure with.

    python benchmarks/make_embedded_text.py --output_dir hf_robustcse/assets [--seed 0] [--check]

Every sentence comes from the seeded grammar in this file; no text is taken from elsewhere. A clause starts as a
`Frame` (who does what, when, where, how, why), which is then worded. A dev pair is one frame worded twice, or two
frames that differ in known slots, and its score follows from the slots that differ. Clauses of dev are held out of the
corpus. Only `random.Random.random` is drawn from: it is the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# `who` persons or `it` anything else: the agents of the `do` lines below it. `do` verbs: objects. `is` subjects:
# adjectives. "a/b" are synonyms, "a ! b" antonyms, "new+house" an adjective that can be left out.
TOPICS = """
# cooking: in the kitchen, at the bakery, in a busy restaurant/in a crowded restaurant, over an open fire; who:
  chef/cook, baker, waiter/server, kitchen assistant/kitchen helper, my grandmother/my grandma, hotel owner; do fry:
  onions, fish, mushrooms, eggs, potatoes, bacon, pancakes; do bake: fresh+bread, chocolate+cake, biscuits/cookies,
  apple pie, pizza, rolls; do taste/try ! refuse/turn down: broth/soup, hot+curry, goat cheese, tomato salad,
  roast+beef, wine; do chop/cut up: carrots, green+peppers, garlic, cabbage, walnuts, herbs; do boil: rice,
  noodles/pasta, beans, sweet+corn, lobster; do order ! send back: breakfast, dinner/supper, dessert, rare+steak, pot
  of coffee, vegetable soup; is soup, stew, sauce, meal: hot ! cold, salty ! sweet, delicious/tasty ! awful/terrible,
  spicy ! mild; is kitchen, oven, frying pan: clean ! dirty, spotless/perfectly clean ! greasy, too small ! big enough
# travel: at the airport, near the border/close to the border, on a tropical island, in a foreign city; who:
  tourists/travellers, businessman, young+couple, backpacker, tour guide, flight attendant; do book/reserve !
  cancel/call off: cheap+hotel room, flight, train ticket, bus tour, guided+tour, cabin; do pack ! unpack:
  suitcase/bag, warm+clothes, sleeping bags, camera, medicine chest; do visit: ancient+castle, seaside/beach, mountain
  village, cathedral, Roman+ruins, palace, waterfall; do miss ! catch: last+train, plane/flight, ferry, night+bus,
  connection; do lose/mislay ! find: passport, road map, luggage/baggage, room key, wallet; do cross: frontier/border,
  desert, narrow+bridge, mountain pass; is hotel, beach, train, airport: crowded/full of people ! empty/deserted,
  clean ! dirty, modern ! old-fashioned; is journey/trip, flight, bus ride: long ! short, comfortable ! uncomfortable,
  cheap/inexpensive ! expensive, dangerous ! safe
# weather: along the coast, in the north, throughout the country/across the whole country, in the valley; it:
  storm/tempest, flood, hurricane, strong+winds, heavy+rain, thick+snow; do destroy/wreck: wooden+houses/homes, wheat
  harvest, orchard, fishing port, greenhouse; do block ! clear: mountain road, railway line, highway/motorway, drains;
  do damage: church roof, power lines, steel+bridge, sailing boats, telephone masts; do delay/hold up: flights,
  football match, opening ceremony, goods trains; who: forecasters/meteorologists, weather office, radio station,
  scientists at the observatory; do predict/forecast: rain, fog/mist, sunshine, frost, thunderstorms, drought; do
  measure: the temperature, the wind speed, the rainfall, the air pressure, the depth of the snow; do warn/alert:
  residents/inhabitants, sailors, drivers/motorists, mountaineers; is weather, evening, night, winter: cold/chilly !
  warm, wet/rainy ! dry, stormy ! calm, cloudy/overcast ! clear; is summer, month, season: hot ! cool, unusually
  humid, pleasant ! unpleasant
# office: at the office, in the meeting room, at headquarters/at the head office, during the conference; who:
  manager/boss, secretary/assistant, engineers, accountant/bookkeeper, new+colleague, director; do sign ! reject:
  contract/agreement, lease, letter, purchase order, annual+report; do answer/reply to ! ignore: email, telephone
  call/phone call, customer's question, complaint; do hire/employ ! fire/dismiss: lawyer/attorney, designer, cleaner,
  sales team, consultants; do organise/arrange ! postpone/put off: meeting, training course, job interview, office
  party, workshop; do print: invoices/bills, business cards, yearly+budget, timetable, price list; do present/show:
  business plan, sales figures, marketing campaign, new+logo, survey; is office, staff, team, manager: busy/occupied !
  free/available, friendly ! unfriendly, efficient ! slow; is meeting, report, contract, project: long/lengthy !
  brief/short, important ! unimportant, urgent, confidential/secret ! public
# science: in the laboratory, at the university, under a microscope, in a series of experiments; who:
  scientists/researchers, chemist, physicist, biology student, professor, inventor; do discover: new+element, virus,
  rare+mineral, chemical reaction, gene, fossil; do study/examine: bacteria, the behaviour of ants, crystals, cells,
  the human brain, magnetic field; do test/check ! ignore: theory/hypothesis, vaccine, battery, water sample, formula;
  do publish: paper/article, results/findings, textbook, data, scientific+journal; do heat ! cool: liquid, copper
  wire, iron, gas, glass tube; do win: the Nobel Prize, research grant, gold+medal, science award; is experiment,
  theory, method, discovery: simple ! complicated/complex, successful ! unsuccessful, important/significant,
  wrong/false ! true/correct; is acid, gas, substance: dangerous/hazardous ! harmless/safe, poisonous/toxic, invisible
  ! visible, rare ! common
# sports: in the stadium, at the Olympic Games, on the training ground, in the second half; who: goalkeeper, football
  team/soccer team, coach/trainer, captain, tennis player, swimmer; do win ! lose: cup final/final, match/game,
  world+championship, race, tournament, league title; do train for/prepare for: marathon, relay race, cycle tour,
  swimming contest/swimming competition; do break ! keep: world+record, promise to the fans, rules; do score ! miss:
  penalty, decisive+goal, winning+point, free kick; do praise ! criticise: referee, young+striker, supporters/fans,
  opponents/rivals, defence; do throw ! catch: ball, javelin, baseball, frisbee; is match/game, race, tournament:
  exciting/thrilling ! boring/dull, fair ! unfair, tough/hard ! easy; is team, goalkeeper, champion, crowd: strong !
  weak, tired/exhausted ! fresh, nervous ! calm, disappointed ! delighted
# family: at home, in the living room, at the dinner table, in the nursery; who: mother/mum, father/dad, grandparents,
  little+girl, twins, uncle, teenager; do wake ! put to bed: baby/infant, children/kids, toddler, sleepy+boy; do
  hug/embrace: daughter, son, aunt, cousin, old+friend; do clean/tidy ! mess up: bedroom, bathroom, cupboard, shelves,
  attic; do wash: dishes/plates, curtains, dirty+laundry, windows, blankets; do celebrate: birthday, wedding, the New
  Year, engagement, silver+anniversary; do read ! write: bedtime story/story, postcard, diary, love letter, comic
  book; is baby/infant, boy, sister, grandfather/grandpa: happy/glad ! sad/unhappy, asleep ! awake, hungry, healthy !
  sick/ill; is house/home, bedroom, living room: quiet/silent ! noisy/loud, tidy ! untidy, dark ! bright, cosy
# animals: at the zoo, in the backyard, in the jungle, under the porch; it: dog/hound, cat, wolf, lion, bear, eagle,
  monkeys, tiger; do chase ! run away from: rabbit/hare, squirrel, mice, deer, wild+pig, goat; do eat/devour: meat,
  insects, berries, bananas, honey, bird's eggs; do guard/protect: nest, young+cubs, territory, cave, den; do attack:
  snake, buffalo, herd of zebras, flock of geese, hen; do hear ! see: hunter, footsteps, strange+sound, cry of an owl;
  who: vet/veterinarian, zoo keeper, dog owner, animal trainer, biologist; do feed: elephants, parrot, kittens,
  giraffe, penguins, turtle; do rescue/save: puppy, injured+fox, whale, hedgehog, donkey; is dog, horse, parrot,
  elephant: tame ! wild, gentle ! aggressive, hungry ! well fed, clever/intelligent ! stupid; is snake, spider, bear,
  insect: poisonous/venomous, enormous/huge ! tiny, fast/quick ! slow, frightening/scary
# music: in the concert hall, on stage, at the festival, in a recording studio; who: pianist, singer/vocalist,
  orchestra, rock band, violinist, choir, composer; do play/perform: sonata, piano concerto, folk melody/folk tune,
  waltz, the national anthem, symphony; do sing: hymn, lullaby, love+song, ballad, opera aria, carol; do record:
  album, single, live+concert, soundtrack, duet; do tune: guitar, cello, harp, drums, grand+piano; do thank/express
  thanks to ! disappoint: audience/listeners, conductor, patrons, critics; do compose/write: ballet, film score,
  march, string quartet, musical; is song, melody/tune, concert, album: popular/well liked ! unpopular, loud !
  quiet/soft, beautiful/lovely ! ugly, cheerful ! sad/gloomy; is singer, drummer, orchestra: famous/well known !
  unknown, talented/gifted, nervous ! relaxed, young ! old
# traffic: in the city centre/downtown, at the crossroads/at the intersection, on the ring road, near the station;
  who: bus driver, cyclist, taxi driver/cab driver, pedestrians, truck driver/lorry driver, motorcyclist; do park:
  car/automobile, van, motorbike/motorcycle, delivery truck/delivery lorry, scooter; do repair/fix ! break:
  bicycle/bike, flat+tyre, engine/motor, brakes, headlights; do pass/overtake: tram, ambulance, slow+tractor, fire
  engine, coach; do ignore ! obey: traffic light, the speed limit, stop sign, police officer; do hit/crash into !
  avoid: lamp post, fence, parked+vehicle, tree, roadblock; it: city council, traffic police, road workers; do close !
  open: tunnel, main+street, car park, underground station/subway station, bus lane, bridge; is road/street, crossing,
  tunnel: busy ! quiet, narrow ! wide/broad, slippery, dangerous ! safe; is bus, car, taxi, tram: late/delayed ! on
  time, full ! empty, fast ! slow, new ! old
# health: at the hospital, in the emergency room, at the clinic, after the operation/following the surgery; who:
  doctor/physician, nurse, surgeon, dentist, pharmacist/chemist, paramedics; do treat: patient, broken+leg, skin
  disease/skin illness, burns, high+fever, cancer; do prescribe: pills/tablets, painkillers, antibiotics, eye drops,
  strict+diet, rest; do examine/check: eyes, heart, injured+knee, teeth, lungs, blood sample; do recommend/suggest !
  advise against: exercise/physical activity, vitamins, herbal+tea, massage, fresh air; do clean ! infect: wound/cut,
  instruments, ear, bandage; do comfort/console: worried+parents, dying man, accident victims, pregnant+woman; is
  patient, nurse, old man, child: sick/ill ! healthy/well, weak ! strong, pale, conscious ! unconscious; is
  operation/surgery, treatment, medicine: painful ! painless, effective ! useless, necessary ! unnecessary, risky !
  safe
# school: in the classroom, at school, in the library, on the blackboard; who: teacher/instructor,
  pupils/schoolchildren, students, headmaster/principal, librarian, class; do solve/work out: equation, difficult
  problem/hard problem, puzzle, riddle, crossword; do pass ! fail: exam/test, spelling test, driving test,
  final+examination; do learn ! forget: poem, French+vocabulary, the alphabet, multiplication table, grammar; do
  explain: chemistry lesson, the meaning of the word, homework/assignment, fractions, rule; do borrow ! return/give
  back: dictionary, atlas, history book, calculator, pencils/pens; do draw: triangle, map of Europe, circle, portrait,
  colourful+picture; is exam/test, lesson/class, homework: difficult/hard ! easy/simple, interesting ! boring/dull,
  long ! short, useful ! useless; is teacher, classroom, pupil, school: strict ! lenient, quiet ! noisy, polite !
  rude, popular ! unpopular
# technology: on the internet/online, in the server room, at a software company, in the app store; who:
  programmer/software developer, user, hacker, technician, start-up company, web designer; do install ! remove/delete:
  program, game, update, operating system, browser, security+patch; do buy/purchase ! sell: laptop/notebook,
  smartphone, printer, tablet, digital+camera, keyboard; do copy: files, photos/pictures, database, web page,
  password, source code; do invent/design: robot, search engine, microchip, mobile+app, machine, satellite dish; do
  fix/repair ! introduce: bug/error, security hole, memory leak, broken+link; do switch on/turn on ! switch off/turn
  off: computer, screen/monitor, television, router, microphone, projector; is computer, network, software, website:
  fast/quick ! slow, reliable ! unreliable, secure/safe ! insecure, modern/up to date ! outdated; is screen, phone,
  battery, keyboard: broken/damaged ! intact, cheap ! expensive, light ! heavy, small ! large
# history: in the Middle Ages, in ancient Egypt, after the revolution, in the nineteenth century; who: king/monarch,
  emperor, queen, general, knights, Roman+soldiers/Roman troops, explorer; do conquer/capture ! lose:
  fortress/stronghold, the capital, kingdom, port, holy+city; do defeat/beat: army, invaders, rebels, pirates, enemy
  fleet; do build/construct ! demolish/tear down: pyramid, temple, city wall, triumphal+arch, canal, monument; do
  found/establish: colony, abbey, dynasty, university, empire; do declare/proclaim: independence, war, republic,
  amnesty; do murder/kill ! spare: prince, traitor, messenger, tyrant, prisoners; is king, emperor, general, queen:
  cruel ! kind, powerful/mighty ! weak, wise ! foolish, brave/courageous ! cowardly; is war, battle, empire,
  revolution: bloody, long ! short, inevitable/unavoidable, glorious
# money: at the bank, on the stock market/on the stock exchange, at the auction, in a difficult year; who: banker,
  investors, shopkeeper, customer/client, insurance company, millionaire/rich man, tax office; do buy/acquire ! sell:
  shares/stocks, gold, land, apartment block, factory/plant, bonds, diamonds; do lend ! repay/pay back: thousand
  dollars, mortgage, small+loan, deposit; do raise/increase ! reduce/cut: prices, interest rates, rents,
  wages/salaries, taxes, fees; do count: coins, banknotes, profits, savings, losses; do spend ! save: salary,
  inheritance, pocket money, pension; do open ! close: bank account/account, branch, safe, discount+store; is bank,
  company/firm, economy: rich/wealthy ! poor, profitable ! unprofitable, stable ! unstable, bankrupt; is price, rent,
  tax, salary: high ! low, fair/reasonable ! unfair, fixed ! variable
# nature: in the forest/in the woods, on the mountain, by the lake/beside the lake, in the national park; who:
  hikers/walkers, ranger, climber/mountaineer, photographer, scouts, botanist; do climb ! descend: peak/summit, cliff,
  steep+hill, glacier, volcano, rocks; do explore: cave, canyon, rain forest, swamp/marsh, underground+river; do
  pick/gather: flowers, wild+strawberries, pine cones, chestnuts, leaves; do watch/observe: butterflies, owl, sunset,
  eclipse, beavers, waterfall; do light ! put out/extinguish: camp fire, torch, lantern, stove; do plant ! cut down:
  oak tree/oak, pines, hedge, palm trees, rose bush; is forest, valley, lake, meadow: green, peaceful/tranquil, deep !
  shallow, beautiful/scenic; is mountain, path/trail, cliff: steep ! flat, high/tall ! low, rocky, muddy ! dry
# farming: on the farm, in the fields, in the greenhouse, behind the barn; who: farmer, gardener, shepherd, farm
  workers/farmhands, wine grower, beekeeper; do grow/cultivate: wheat, barley, tomatoes, olives, tulips, sugar cane,
  pumpkins; do milk: cows, goats, sheep, brown+cow; do water: lawn/grass, young+plants, vegetable garden, roses,
  flower beds; do harvest/gather in: grapes, ripe+apples, cotton, cherries, honey; do shear/clip: ram, flock of sheep,
  lambs, poodle; do drive: tractor, combine harvester, hay cart, cattle; do spread: manure, fertiliser, seeds, straw;
  is soil, field, garden, farm: fertile/rich ! barren/poor, dry ! wet/soaked, large/big ! small, well kept !
  neglected; is harvest/crop, apple, grapes: good ! bad/poor, ripe ! unripe, rotten ! fresh, sweet ! sour
# crime: in court, at the police station, in the prison yard, at the scene of the crime; who: police,
  detective/investigator, judge, witness, lawyer/attorney, prison guard, jury; do arrest/detain ! release/set free:
  thief/burglar, suspect, drug dealer, gang, robber, bank clerk; do search: apartment/flat, stolen+car, warehouse,
  suspect's pockets, cellar/basement; do find/discover ! hide/conceal: fingerprints, weapon/gun, knife, stolen+jewels,
  body, evidence/proof; do question/interrogate: neighbours, eyewitness, night porter, kidnapper, victim; do accept !
  reject/refuse: confession, appeal, alibi, offer of a bribe, verdict; do identify/recognise: murderer/killer,
  forged+signature, voice, licence plate; is suspect, defendant/accused man, thief: guilty ! innocent, armed !
  unarmed, violent ! peaceful; is crime, trial, sentence, evidence: serious/grave ! trivial, shocking, convincing !
  unconvincing, brief ! long
# arts: in the theatre, at the gallery, in the cinema/in the movie theatre, at the film festival; who: actor,
  painter/artist, director/film maker, novelist/author, sculptor, critic, actress; do paint: landscape, mural, still
  life, self-portrait, abstract+canvas; do write ! burn: novel, screenplay/script, biography, poems/verses,
  detective+story, play; do praise/applaud ! condemn: exhibition, film/movie, performance, comedy, Italian+opera,
  thriller; do carve: wooden+statue, marble bust, relief, mask, figure of a saint; do steal: masterpiece,
  Dutch+painting, vase, ancient+sculpture, altar; do edit/revise: manuscript, documentary, cartoon, chapter, magazine;
  is film/movie, novel, play, exhibition: funny/amusing ! serious, boring/tedious ! exciting, brilliant/excellent !
  terrible/dreadful, famous; is actor, painter, writer/author: young ! elderly/old, unknown ! famous/celebrated,
  arrogant ! modest, rich ! poor
# sea: at sea, in the harbour/in the port, off the coast, below deck; who: captain/skipper, sailors, fisherman, coast
  guard, divers, lighthouse keeper; do steer: ship/vessel, lifeboat, submarine, yacht, oil+tanker; do rescue/save !
  abandon: drowning man, crew, passengers, shipwrecked+family, surfer; do catch: tuna, crabs, shark, salmon, eel,
  octopus; do load ! unload: cargo/freight, containers, coal, barrels of oil, bananas; do lower ! raise: anchor, sail,
  nets, flag, gangway; do find/discover: sunken+treasure, wreck, pearls, coral reef, message in a bottle; is
  sea/ocean, water, bay: rough ! calm/smooth, blue, cold ! warm, deep ! shallow; is ship/vessel, ferry, boat: old !
  new, fast ! slow, fully loaded ! empty, lost ! safe
# politics: in parliament, at the summit, during the election campaign, in a televised debate; who: president,
  minister, opposition, senator, mayor, government, ambassador; do sign ! break: treaty, peace agreement/peace deal,
  petition, trade pact; do pass/adopt ! reject/vote down: bill/draft law, budget, reform, constitution, new+tax; do
  support/back ! oppose: candidate, trade union, strike, health minister, referendum, protest; do win ! lose:
  election, vote, majority, seat in the senate, the confidence of the people; do appoint/name ! remove: ambassador,
  finance minister, chief of staff, committee, commission; do address/speak to: crowd, nation, reporters/journalists,
  demonstrators/protesters, delegates; is government, president, party, minister: corrupt ! honest, popular !
  unpopular, liberal ! conservative, divided ! united; is law, election, decision, speech: democratic ! undemocratic,
  controversial, historic, unfair/unjust ! fair/just
# space: in space, on the moon, from the ground station, at the observatory; who: astronauts/cosmonauts, astronomer,
  space agency, amateur stargazer, mission control; do launch: rocket, satellite, space shuttle, probe to Mars,
  weather balloon; do observe/watch: comet, planet, solar+eclipse, distant+galaxy, meteor shower, black hole; do land
  ! launch: spacecraft, capsule, lunar+module, rover; do repair: telescope, solar panels, antenna, cooling system; do
  receive ! send/transmit: radio signal, pictures of Saturn, distress call, telemetry; do collect: moon rock, dust,
  soil samples, data on cosmic rays; is planet, star, galaxy, comet: bright ! faint/dim, distant/far away !
  near/close, gigantic/huge ! tiny, cold ! hot; is mission, launch, flight: risky/dangerous ! safe, successful !
  unsuccessful, costly/expensive ! cheap, historic
# clothes: at the department store, in the fitting room, at the flea market, during the sales; who: tailor, shop
  assistant/sales clerk, bride, fashion designer, model, elderly+lady, shopper; do sew/stitch: dress/gown, silk+shirt,
  curtains, buttons, wedding dress, costume; do try on ! take off: shoes, leather+jacket, hat, jeans, gloves, fur
  coat; do buy/purchase ! return/bring back: ring, red+sweater/jumper, necklace, sunglasses, handbag, perfume; do
  wear: uniform, scarf, black+suit, boots, pearl earrings, raincoat; do iron: skirt, blouse, trousers/pants,
  tablecloth, handkerchiefs; do wrap ! unwrap: present/gift, parcel/package, bottle, toy train, box of chocolates; is
  dress, jacket, skirt, hat: elegant/stylish ! shabby, too tight ! too loose, cheap ! expensive/dear, fashionable !
  old-fashioned; is shop/store, shop window, market: open ! closed/shut, crowded ! empty, famous, near ! far away
# building: on the building site, on the first floor, in the workshop, on the roof; who: carpenter, bricklayer,
  plumber, architect, electrician, builders/construction workers, painter; do repair/mend: roof, broken+window,
  leaking+pipe, staircase, heating, chimney; do build/put up ! pull down/tear down: garage, brick+wall, shed,
  skyscraper, garden fence, balcony; do paint: door, ceiling, front gate, wooden+bench, kitchen walls; do measure:
  floor, beam, bathroom tiles, planks/boards, width of the gate; do install/fit ! remove/take out: shower, sink,
  lamp/light, lift/elevator, wash basin, radiator; do use: hammer, electric+drill, ladder, saw, crane, screwdriver,
  wheelbarrow; is house, wall, roof, tower: high/tall ! low, old ! new, solid/strong ! unsafe, nearly finished/almost
  complete; is hammer, drill, ladder, saw: heavy ! light, useful/handy ! useless, broken, sharp ! blunt
# energy: in the power station, in the desert, at the refinery, along the river; it: power company, oil company,
  mining company, factory, government agency; do pollute ! clean up: river/stream, lake, beaches, drinking water, the
  air; do produce/generate: electricity, waste/rubbish, plastic, carbon dioxide, nuclear+power, steam; do build !
  close down: dam, wind farm, coal mine, oil+pipeline, nuclear reactor; who: environmentalists, engineers, miners,
  inspectors, residents; do recycle ! throw away: paper, glass bottles, old+batteries, cans/tins, scrap metal; do
  protest against ! welcome: new+mine, nuclear waste, dam project, noise, carbon tax; do save ! waste: energy, water,
  fuel/petrol, heat, trees; is river, air, factory, beach: polluted/contaminated ! clean, dirty, noisy ! quiet; is
  electricity, oil, coal, gas: cheap ! expensive, scarce ! plentiful, necessary/essential, harmful ! harmless
# festivals: at the party, in the town square, around the Christmas tree, in the village hall; who: guests/visitors,
  host, villagers, the bride and groom, dancers, priest, clown, neighbours; do decorate: hall, wedding cake, town
  hall, church, Easter eggs, float; do light ! blow out: candles, fireworks, bonfire, paper+lanterns; do invite:
  relatives, jazz band, whole+street, magician, schoolmates; do dance: tango, polka, folk+dance, final waltz; do open
  ! close: presents/gifts, champagne bottle, ball, charity bazaar; do bless: marriage, congregation, harvest,
  new+bell, pilgrims; is party/celebration, parade, festival, wedding: cheerful/merry ! dull, noisy ! quiet,
  traditional ! modern, unforgettable/memorable; is cake, costume, present/gift, hall: colourful ! plain,
  beautiful/pretty ! ugly, enormous/huge ! tiny
"""
NAMES = """Maria Ahmed Julia Peter Yuki Carlos Anna David Fatima Thomas Elena Samuel Ingrid Victor Leila George Clara
Ivan Susan Hassan Emma Daniel Sofia Henry Nina Oscar Ruth Marco Alice Kenji""".split()
IRREGULAR = """be was been, beat beat beaten, bring brought brought, break broke broken, build built built, buy bought bought,
blow blew blown, catch caught caught, cut cut cut, draw drew drawn, drive drove driven, eat ate eaten, feed fed fed,
find found found, forecast forecast forecast, fit fitted fitted, forget forgot forgotten, give gave given, grow grew grown, hear heard heard,
hide hid hidden, hit hit hit, hold held held, keep kept kept, learn learnt learnt, lend lent lent, light lit lit,
lose lost lost, mislay mislaid mislaid, overtake overtook overtaken, pay paid paid, put put put, read read read, repay repaid repaid, run ran run,
say said said, set set set, see saw seen, sell sold sold, send sent sent, sew sewed sewn, shear sheared shorn, show showed shown,
sing sang sung, speak spoke spoken, spend spent spent, spread spread spread, steal stole stolen, take took taken,
tear tore torn, throw threw thrown, wake woke woken, wear wore worn, win won won, write wrote written"""
DOUBLED = set("cancel forget transmit unwrap".split())  # two syllables, and the last consonant is doubled
MASS = set(
    """cancer fish bacon bread beef wine garlic rice corn breakfast dinner supper dessert coffee soup broth stew sauce curry
    cheese salad pasta luggage baggage medicine clothing rain snow fog mist sunshine frost drought rainfall pressure
    speed iron gas copper wire defence laundry meat honey territory rest exercise activity tea air diet vocabulary
    grammar homework code independence war amnesty gold land money wheat barley cane cotton cattle manure fertiliser
    straw evidence proof tuna salmon coal cargo freight telemetry dust rock heating electricity waste rubbish plastic
    dioxide power steam paper metal noise energy water fuel petrol heat oil behaviour grass treasure weather champagne
    surgery perfume staff traffic harvest software""".split()
)
PLURAL = set("children schoolchildren police mice bacteria data deer teeth".split())
SINGULAR = set("atlas canvas Christmas class glass access business".split())
PREPOSITIONS = set("of for from on in to with at against into after about".split())
FIXED = set("my the our".split())
UNGRADED = set("asleep awake guilty innocent open closed shut conscious unconscious unknown necessary".split())

PAST = """yesterday, last night/the night before, last week/a week ago, on Sunday morning, in the afternoon/after lunch,
early in the morning/at dawn, two days ago/the day before yesterday, last month/a month ago, at midnight, in 1998,
during the holidays, a long time ago/many years ago, last summer, recently/not long ago, on Friday evening"""
FUTURE = """tomorrow, next week/in a week, this evening/tonight, next year, before Friday, soon/before long, next spring,
without delay/as soon as possible, at noon/at twelve o'clock, after the weekend, later today"""
HABIT = """every day/daily, on Sundays/every Sunday, once a month, in winter, all year round/throughout the year,
from time to time/now and then, as a rule/normally, in the evening, several times a week, twice a year"""
HOW = """carefully/with great care, quickly/in a hurry, without any help/unaided, by mistake/by accident, with a smile,
on purpose/intentionally, with great pleasure/gladly, for the first time, once again/one more time, for no reason"""
WHY = """because it was raining/because of the rain, to save time, for lack of money/because there was no money left,
to impress the others, because nobody else wanted to, since there was no other choice/for want of an alternative,
because of a bet, for safety reasons/to be on the safe side"""
COUNTS = "two, three, four, several/a few, a dozen/twelve, many/a lot of, hundreds of, both, the first two, most of the"
FACTS = """is harder than it looks, takes a lot of practice, is against the rules, can be great fun, costs too much money,
is not as easy as people think, was a bad idea, requires patience, saved everybody a lot of trouble, is a waste of time,
was his favourite job, became more and more difficult, made her famous, has been forbidden for years, is nothing new"""
REPORTS = """said that, thinks that, hopes that, is afraid that, has heard that, does not believe that, told everyone that,
knows that, is quite sure that, wrote to us that, could not understand why"""
WISHES = """asked {} to, wanted {} to, helped {} to, did not allow {} to, has persuaded {} to, will teach {} to,
is waiting for {} to, never expected {} to, saw how {} tried to, paid {} to, reminded {} to"""
DEGREES = "very/extremely, rather/fairly, surprisingly/unexpectedly, a little/slightly, far too/much too, really/truly"
# Per score, whether the two clauses of a dev pair share the agent (or subject), the verb and the object (or quality).
SAME_ACT = {
    (3.5, False, True, True), (3.0, True, True, False), (2.0, False, True, False), (1.5, True, False, False),
    (1.0, False, False, False),
}  # fmt: skip
SAME_QUALITY = {(3.0, False, True, True), (2.0, True, True, False), (1.0, False, True, False)}
ECHO = (0.0, 0.3, 0.8)
CORPUS, DEV = "corpus.txt.gz", "data/sts/EMBEDDED/dev.tsv"
KINDS = """plain plain plain ask two two report because because quality quality compare none order gerund fact relative
wish"""
MODES = "past, past, past, past, perfect, progressive, will, might/may, should/ought to, must, present, present"


def listed(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", " ").split(",")]


FORMS = {row.split()[0]: row.split()[1:] for row in listed(IRREGULAR)}
TIMES = {"past": listed(PAST), "progressive": listed(PAST), "present": listed(HABIT), "perfect": []}
ADJUNCTS = ("how", "where", "when", "why")


@dataclass(frozen=True)
class Frame:
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
        if old not in options or (len(options) > 1 and self.rng.random() >= self.echo):
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
    doubled = verb[-1] not in "aeiouwxy" and len(verb) > 2 and vowels[-3:] == [False, True, False] and groups == 1
    stem = verb + verb[-1] if doubled or verb in DOUBLED else verb
    if form == "s":
        hissing = verb.endswith(("s", "sh", "ch", "x", "z", "o"))
        out = verb + "es" if hissing else verb[:-1] + "ies" if verb[-1] == "y" and not vowels[-2] else verb + "s"
    elif form == "ing":
        out = stem[:-1] + "ing" if verb.endswith("e") and not verb.endswith("ee") and verb != "be" else stem + "ing"
    elif verb in FORMS:
        out = FORMS[verb][form == "done"]
    else:
        out = verb + "d" if verb[-1] == "e" else verb[:-1] + "ied" if verb[-1] == "y" and not vowels[-2] else stem + "ed"
    return f"{out} {rest}".strip()


def number_of(phrase: str) -> str:
    """Whether a noun phrase is "one", "many" or "mass"."""
    words = phrase.split()
    head = next((words[i - 1] for i, word in enumerate(words) if i and word in PREPOSITIONS), words[-1])
    if head in MASS:
        return "mass"
    plural = head.endswith("s") and not head.endswith(("ss", "us", "is")) and head not in SINGULAR | set(NAMES)
    return "many" if plural or head in PLURAL or " and " in phrase else "one"


def article(phrase: str) -> str:
    an = phrase[0] in "aeiou" and not phrase.startswith(("uni", "use", "euro", "one"))
    return ("an " if an or phrase.startswith(("hour", "honest")) else "a ") + phrase


def noun_phrase(voice: Voice, noun: str, definite: bool, count: str = "", bare: bool = False) -> tuple[str, bool]:
    """A noun phrase and whether it is plural."""
    adjective, _, nouns = noun.rpartition("+")
    head = voice.word(nouns)
    number = number_of(head)
    phrase = f"{adjective} {head}" if adjective and not bare else head
    if head in NAMES or head.split()[0] in FIXED:
        return phrase, number == "many"
    if number == "many" and count:
        return f"{voice.word(count)} {phrase}", True
    if definite:
        return f"the {phrase}", number == "many"
    return (article(phrase) if number == "one" else phrase), number == "many"


def verb_group(mode: str, verb: str, plural: bool, negated: bool = False, passive: bool = False) -> list[str]:
    """The words of a finite verb; the first is an auxiliary where `negated`, or where the mode has one."""
    done = [inflect(verb, "done")] if passive else []
    verb = "be" if passive else verb
    no = ["not"] if negated else []
    if mode == "progressive" and (verb != "be" or passive):
        return ["were" if plural else "was", *no, inflect(verb, "ing"), *done]
    if mode == "perfect":
        return ["have" if plural else "has", *no, inflect(verb, "done"), *done]
    if mode in ("past", "progressive", "present") and verb == "be":
        return [{"present": ("is", "are")}.get(mode, ("was", "were"))[plural], *no, *done]
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
    degree = voice.word(frame.degree) + " " if frame.degree else ""
    return degree + voice.word(frame.what)


def can_be_passive(verb: str) -> bool:
    return verb != "be" and verb.split()[-1] not in PREPOSITIONS - {"on"}


def clause(voice: Voice, frame: Frame, adjuncts: Sequence[str] = ADJUNCTS, shape: str = "", question: bool = False) -> str:
    """The words of a clause; with `question`, of a yes/no question."""
    verb, mode = voice.word(frame.verb), voice.word(frame.mode)
    passive = shape == "passive" and can_be_passive(verb)
    subject, plural = noun_phrase(voice, frame.who, frame.the_who)
    agent = ""
    if passive:
        agent = f"by {subject}"
        subject, plural = noun_phrase(voice, frame.what, frame.the_what, frame.count, frame.bare)
    words = verb_group(mode, verb, plural, frame.negated, passive)
    if question:
        first, *rest = verb_group(mode, verb, plural, True, passive)
        words = [first, subject, *[word for word in rest if word != "not"]]
    elif frame.negated and mode == "past" and frame.human and not passive:
        other = {"never": ["never", inflect(verb, "past")], "fail": ["failed to", verb]}
        words = [subject, *other.get(voice.choose("no", ["not", "never", "fail"]), words)]
    elif shape == "cleft" and frame.verb != "be":
        words = ["it", "was" if mode in ("past", "progressive") else "is", subject, "who" if frame.human else "that", *words]
    else:
        words = [subject, *words]
    words.append(agent if passive else predicate(voice, frame))
    given = [(name, getattr(frame, name)) for name in adjuncts if getattr(frame, name)]
    said = [(name, voice.word(text)) for name, text in given]
    front = voice.choose("front", ["", "", *[name for name, _ in said if name != "how"]]) if not question else ""
    words += [text for name, text in said if name != front]
    opening = [f"{text}," for name, text in said if name == front]
    return " ".join(opening + words)


def finish(text: str, end: str = ".") -> str:
    return text[0].upper() + " ".join(text.split())[1:] + end


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
            elif kind in ("who", "it"):
                agents, human = listed(right), kind == "who"
            elif kind == "do":
                verb, _, opposite = head.partition(" ! ")
                self.acts.setdefault(topic, []).append((verb, opposite, listed(right), agents, human))
            else:
                for adjective in listed(right):
                    quality, _, opposite = adjective.partition(" ! ")
                    self.qualities.setdefault(topic, []).append((listed(head), quality, opposite))

    def adjuncts(self, topic: str, mode: str, human: bool, number: int) -> dict[str, str]:
        rng, times = self.rng, TIMES.get(mode, listed(FUTURE))
        choices = {"where": self.places[topic], "when": times, "how": listed(HOW) if human else [], "why": []}
        if mode in ("past", "progressive") and human:
            choices["why"] = listed(WHY)
        names = [name for name in ("where", "where", "when", "when", "how", "why") if choices[name]]
        return {name: pick(rng, choices[name]) for name in [pick(rng, names) for _ in range(number)]}

    def act(self, topic: str = "", adjuncts: int = -1) -> Frame:
        rng = self.rng
        topic = topic or pick(rng, sorted(self.acts))
        verb, opposite, objects, agents, human = pick(rng, self.acts[topic])
        if opposite and chance(rng, 0.5):
            verb, opposite = opposite, verb
        what, mode = pick(rng, objects), pick(rng, listed(MODES))
        mode = pick(rng, ["past", "past", "progressive"]) if topic == "history" else mode
        many = all(number_of(noun) == "many" for noun in what.rpartition("+")[2].split("/"))
        frame = Frame(
            topic, pick(rng, NAMES if human and chance(rng, 0.25) else agents), verb, what, opposite, human,
            the_who=chance(rng, 0.75), the_what=chance(rng, 0.5), bare=chance(rng, 0.3), mode=mode,
            count=pick(rng, listed(COUNTS)) if many and chance(rng, 0.4) else "", negated=chance(rng, 0.1),
        )  # fmt: skip
        number = adjuncts if adjuncts >= 0 else pick(rng, [0, 1, 1, 2, 2])
        return replace(frame, **self.adjuncts(topic, mode, human, number))

    def quality(self, topic: str = "") -> Frame:
        rng = self.rng
        topic = topic or pick(rng, sorted(self.acts))
        subjects, what, opposite = pick(rng, self.qualities[topic])
        if opposite and chance(rng, 0.5):
            what, opposite = opposite, what
        mode = pick(rng, ["past", "past", "present", "perfect", "might/may", "will"])
        simple = not any(" " in word or word in UNGRADED for word in what.split("/"))
        negated = chance(rng, 0.1)
        degree = pick(rng, listed(DEGREES)) if simple and not negated and chance(rng, 0.5) else ""
        when = pick(rng, TIMES["past"]) if mode == "past" and chance(rng, 0.4) else ""
        return Frame(topic, pick(rng, subjects), "be", what, opposite, degree=degree, when=when, mode=mode, negated=negated)


def verb_phrase(voice: Voice, frame: Frame, form: str = "", adjuncts: Sequence[str] = ("how", "where")) -> str:
    """A verb with its object and adjuncts and no subject, in the plain or the given form."""
    verb = voice.word(frame.verb)
    said = [voice.word(getattr(frame, name)) for name in adjuncts if getattr(frame, name)]
    return " ".join([inflect(verb, form) if form else verb, predicate(voice, frame), *said])


def corpus_sentence(grammar: Grammar) -> tuple[str, list[Frame]]:
    """A sentence of one or two clauses, with the frames that it says."""
    rng = grammar.rng
    voice = Voice(rng)
    kind = pick(rng, KINDS.split())
    one = grammar.act()
    same = replace(grammar.act(one.topic, 1), mode=one.mode)
    what = grammar.quality(one.topic)
    name = pick(rng, [name for name in NAMES if name not in (one.who, same.who)])
    shape = pick(rng, ["", "", "", "passive", "passive", "cleft"])
    if kind == "plain":
        return finish(clause(voice, one, shape=shape)), [one]
    if kind == "ask":
        word = pick(rng, ["", "", "why ", "when ", "where ", "how often ", "since when "])
        said = [a for a in ADJUNCTS if not word or a == "how"]
        return finish(word + clause(voice, replace(one, negated=False), said, shape, True), "?"), [one]
    if kind == "two":
        join = pick(rng, [", while ", ", and ", ", but ", " before ", " after ", ", although ", " until ", ", so "])
        first = clause(voice, one, ("where",) if join in (" before ", " after ", " until ") else ADJUNCTS[:2], shape)
        return finish(first + join + clause(voice, same, ("when",))), [one, same]
    if kind == "report":
        verb = pick(rng, listed(REPORTS))
        return finish(f"{name} {verb} {clause(voice, pick(rng, [one, what]), ADJUNCTS[:3])}"), [one, what]
    if kind == "because":
        link = pick(rng, ["because", "since", "although", "even though", "just when", "as"])
        return finish(
            f"{clause(voice, replace(one, mode='past'), ADJUNCTS[:2], shape)} {link} "
            f"{clause(voice, replace(what, mode='past', when=''))}"
        ), [one, what]  # fmt: skip
    if kind == "quality":
        if chance(rng, 0.25):
            lead = pick(rng, ["", "", "why ", "since when "])
            return finish(lead + clause(voice, replace(what, mode="present"), (), question=True), "?"), [what]
        return finish(clause(voice, what)), [what]
    if kind == "compare":
        rows = [row[0] for row in grammar.qualities[one.topic] if what.who in row[0]]
        subjects = [noun_phrase(voice, who, True)[0] for who in (what.who, pick(rng, rows[0]))]
        if subjects[0] == subjects[1] or " " in voice.word(what.what):
            return "", []
        be = "were" if number_of(subjects[0]) == "many" else "was"
        degree = pick(rng, ["as {} as", "not as {} as", "less {} than", "just as {} as", "not nearly as {} as"])
        when = pick(rng, ["", "", voice.word(pick(rng, TIMES["past"]))])
        return finish(f"{subjects[0]} {be} {degree.format(voice.word(what.what))} {subjects[1]} {when}".strip()), [what]
    if kind == "none":
        thing = noun_phrase(voice, one.what, False, bare=one.bare)[0].split(" ", number_of(one.what) == "one")[-1]
        be = "were" if number_of(thing) == "many" else "was"
        return finish(f"there {be} no {thing} {pick(rng, grammar.places[one.topic])} {pick(rng, TIMES['past'])}"), []
    if not (one.human and same.human):
        return "", []
    actor = noun_phrase(voice, one.who, one.the_who)[0]
    same = replace(same, who=one.who)
    if kind == "order":
        lead = pick(rng, ["please {}", "do not {}", "never {}", "let us {}", "remember to {}", "you had better {}"])
        tail = pick(rng, ["", f" before {verb_phrase(voice, same, 'ing', ())}"])
        return finish(lead.format(verb_phrase(voice, one)) + tail), [one]
    if kind == "gerund":
        link = pick(rng, ["after", "before", "instead of", "without", "by", "besides", "while"])
        first = f"{link} {verb_phrase(voice, same, 'ing', ())}, "
        return finish(first + clause(voice, replace(one, negated=False), ())), [one, same]
    if kind == "fact":
        return finish(f"{verb_phrase(voice, one, 'ing')} {pick(rng, listed(FACTS))}"), [one]
    if kind == "relative":
        if number_of(actor) == "many" or actor[0].isupper():
            return "", []
        past = [verb_phrase(voice, frame, "past", given) for frame, given in ((same, ()), (one, ADJUNCTS[:2]))]
        return finish(f"{actor} who {past[0]} {past[1]}"), [one, same]
    verb = pick(rng, listed(WISHES))
    return finish(f"{name} {verb.format(actor)} {verb_phrase(voice, one, '', ADJUNCTS[:2])}"), [one]


def wording(voice: Voice, frame: Frame, question: bool) -> str:
    """A sentence that says `frame`; again with the same voice, a paraphrase."""
    shapes = ["", "passive", "cleft"] if not question else ["", "passive"]
    if frame.verb == "be":
        negatable = frame.opposite and not frame.negated and not frame.degree and not question
        shapes = ["", "anything but"] if negatable else [""]
    shape = voice.choose("shape", shapes)
    if shape == "anything but":
        frame = replace(frame, what=frame.opposite, degree="anything but")
    return finish(clause(voice, frame, shape=shape, question=question), "?" if question else ".")


def altered(grammar: Grammar, a: Frame, score: float) -> Frame | None:
    """A frame whose likeness to `a` is `score`, or None where `a` has nothing to alter in that way."""
    rng, act = grammar.rng, a.verb != "be"
    draw = grammar.act if act else grammar.quality
    if score == 5:
        return a
    if score == 4.5:  # a detail more or less
        given = [name for name in ("how", "count", "degree") if getattr(a, name)]
        if act and "+" in a.what:
            return replace(a, bare=not a.bare)
        return replace(a, **{pick(rng, given): ""}) if given else None
    if score == 4:  # another time or place, or none
        given = [name for name in ("when", "where", "why") if getattr(a, name)]
        if not given:
            return None
        name = pick(rng, given)
        return replace(a, **{name: ""}) if chance(rng, 0.3) else replace(a, **{name: getattr(draw(a.topic), name)})
    if score == 2.5 and (chance(rng, 0.5) or not a.opposite):
        return replace(a, negated=not a.negated)
    if score == 2.5:
        return replace(a, verb=a.opposite) if act else replace(a, what=a.opposite)
    if score <= 0.5:
        b = draw(pick(rng, sorted(set(grammar.acts) - {a.topic})))
        b = replace(b, mode=a.mode, when=a.when, how=a.how if b.human else "", why=a.why if b.human else "")
        return replace(b, who=a.who) if score == 0.5 and a.who in NAMES and b.human else b if score == 0 else None
    for _ in range(200):
        b = draw(a.topic)
        if (score, a.who == b.who, a.verb == b.verb, a.what == b.what) in (SAME_ACT if act else SAME_QUALITY):
            if score == 1 and chance(rng, 0.5):
                return b
            kept = {name: getattr(a, name) for name in (*ADJUNCTS, "mode", "negated", "degree")}
            return replace(b, **kept if b.human == a.human else {"mode": a.mode})
    return None


def dev_pairs(grammar: Grammar, size: int) -> tuple[list[tuple[float, str, str]], set[tuple[str, str, str]]]:
    """`size` distinct pairs, about equally many of each half score, in random order, and the clauses in them."""
    rng = grammar.rng
    pairs: dict[tuple[str, str], float] = {}
    keys = set()
    while len(pairs) < size:
        score = len(pairs) % 11 / 2
        a = grammar.act() if chance(rng, 0.75) else grammar.quality()
        b = altered(grammar, a, score)
        if b is None or (b == a) != (score == 5):
            continue
        voice, question = Voice(rng, pick(rng, ECHO)), chance(rng, 0.1)
        pair = wording(voice, a, question), wording(voice, b, question)
        if pair[0] != pair[1] and pair not in pairs and all(3 <= len(text.split()) <= 25 for text in pair):
            pairs[pair] = score
            keys |= {a.key, b.key}
    rows = [(score, *pair) for pair, score in pairs.items()]
    return [row for _, row in sorted((rng.random(), row) for row in rows)], keys


def build(seed: int, corpus_size: int = 20000, dev_size: int = 1000) -> dict[str, bytes]:
    """The texts, by their path in the assets folder."""
    grammar = Grammar(random.Random(seed))
    pairs, held_out = dev_pairs(grammar, dev_size)
    seen = {text for _, *pair in pairs for text in pair}
    corpus = []
    while len(corpus) < corpus_size:
        text, frames = corpus_sentence(grammar)
        if 6 <= len(text.split()) <= 25 and text not in seen and not any(frame.key in held_out for frame in frames):
            seen.add(text)
            corpus.append(text)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write("".join(f"{text}\n" for text in corpus).encode())
    rows = ["score\tsentence1\tsentence2", *(f"{score:g}\t{one}\t{two}" for score, one, two in pairs)]
    return {CORPUS: buffer.getvalue(), DEV: "".join(f"{row}\n" for row in rows).encode()}


def content(path: str, data: bytes) -> bytes:
    """The text: what zlib makes of it may differ from one zlib to the next."""
    return gzip.decompress(data) if path.endswith(".gz") else data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="the assets folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare with what is there; exit code 1 on a difference")
    args = parser.parse_args()
    wrong = []
    for path, data in build(args.seed).items():
        target = args.output_dir / path
        if args.check:
            if not target.is_file() or content(path, target.read_bytes()) != content(path, data):
                wrong.append(str(target))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            print(f"{target}: {len(data)} bytes")
    if wrong:
        sys.exit(f"differs from what the grammar writes: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
