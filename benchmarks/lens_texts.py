"""First words of the texts that the lenses of docs/lenses.md are fitted to, and its twenty prompts."""

FIRST_WORDS = (
    "The In A When She He They It This There Many One Some After Before During While For At On"
    " People Water Music History Science Children Women Scientists Today Yesterday My Our Their His"
    " Her Once Every Most If Although Because However Since According Two Three Paris London"
    " Germany China America India Africa God Love Life War Art Time Energy Light Food Plants"
    " Animals Birds"
)

FACTS = {
    "The capital of France is": " Paris",
    "The capital of Italy is": " Rome",
    "The capital of Germany is": " Berlin",
    "The capital of Spain is": " Madrid",
    "The capital of Japan is": " Tokyo",
    "The capital of England is": " London",
    "The capital of Russia is": " Moscow",
    "The capital of China is": " Beijing",
    "The Eiffel Tower is in the city of": " Paris",
    "The Colosseum is in the city of": " Rome",
    "People in Mexico speak": " Spanish",
    "The opposite of hot is": " cold",
    "The opposite of big is": " small",
    "The opposite of up is": " down",
    "Romeo and Juliet was written by William": " Shakespeare",
    "The theory of relativity was developed by Albert": " Einstein",
    "The first president of the United States was George": " Washington",
    "The Earth orbits around the": " Sun",
    "The pyramids were built in ancient": " Egypt",
    "The Great Wall is in": " China",
}
